// Lina's inference (USENIX ATC 2023, section 5) over a routing law, batch after batch on a
// simulated cluster: experts' popularity estimated from token paths, devices allocated in two
// phases, and what of that is not hidden. Devices go in step: compute before an exchange is the
// same on all; the second all-to-all of a layer begins after the slowest device's experts. No link
// and no core is shared with anything else.
#pragma once

#include <vector>

#include "engine/placement/popularity.h"
#include "engine/placement/two_phase.h"
#include "engine/routing/law.h"
#include "engine/sim/inference_costs.h"

namespace moe {

/// kBaseline: one expert a device. kIdeal: so, and the gate balanced. kLina: both phases.
/// kNoEstimation: phase 2 places by actual counts in every layer, and blocks. kNoFineTuning: phase
/// 1 alone.
enum class InferenceSystem { kBaseline, kIdeal, kLina, kNoEstimation, kNoFineTuning };
/// Throws UserError with the nearest of baseline, ideal, lina, no_estimation, no_fine_tuning.
InferenceSystem inference_system(const std::string& name);

/// What scheduling takes beside the network.
struct ScheduleTimes {
  Nanoseconds place_ns = 0;   // phase 1, on one device, from the end of the first all-to-all
  Nanoseconds resume_ns = 0;  // phase 2 where the estimate holds: counts there, "go on" back
  Nanoseconds rerun_ns = 0;   // phase 2 where it does not: counts there, placing, the mapping back
  double host_bytes_per_s = 0;  // experts from host memory, each device for itself
};
/// resume_ns and rerun_ns by the cluster's own start-ups and rates: counts to one device as a
/// broadcast the other way round, 8 bytes or the mapping back, placing in place_ns.
ScheduleTimes closed_form_times(const Cluster& cluster, int64_t experts, Nanoseconds place_ns,
                                double host_bytes_per_s, const TwoPhaseOptions& place = {});

struct InferenceSpec {
  ModelSpec model;  // batch_per_device rows of seq tokens; capacity is not looked at
  Cluster cluster;
  RoutingLaw law;
  InferenceSystem system = InferenceSystem::kLina;
  int64_t first_step = 0;  // of the law: profile_batches from there on, then batches
  int64_t profile_batches = 1;
  int64_t batches = 1;
  int64_t path = 3;
  int64_t keep = 0;  // probabilities a path; 0: k of the gate
  bool shorter = false, normalise = false;
  Compare compare = Compare::kList;
  TwoPhaseOptions place;
  ScheduleTimes times;
};

/// One MoE layer of one batch.
struct InferenceLayer {
  Nanoseconds layer_ns = 0;   // gate, phase 2, local rows, both all-to-alls, experts
  Nanoseconds a2a_ns = 0;     // both
  Nanoseconds expert_ns = 0;  // the slowest device's, with what it waits for weights
  Nanoseconds phase2_ns = 0;
  Nanoseconds mapping_wait_ns = 0;  // for phase 1's mapping, part of phase2_ns
  Nanoseconds swap_wait_ns = 0;     // by which the experts end later for weights that come
  int64_t swapped = 0;              // experts copied to a device
  bool estimated = false;
  bool held = false;  // its top 2k are those of the gate
  bool rerun = false;
};

struct InferenceResult {
  std::vector<Nanoseconds> batch_ns;
  std::vector<InferenceLayer> layers;  // [batches, MoE layers]
  int64_t num_layers = 0;
  int64_t paths = 0;  // that the profile knows
};
/// Throws UserError naming "inference.<field>" and as InferenceCosts, the law, two_phase_bounds().
InferenceResult simulate_inference(const InferenceSpec& spec);

/// The least sample that `share` of them do not exceed; share in (0, 1]. Requires: samples.
Nanoseconds percentile(std::vector<Nanoseconds> samples, double share);

/// Lina, figure 9, of a law: add_transitions over the batches, by layer from the second on.
std::vector<Loads> transitions(const RoutingLaw& law, const RoutingQuery& first, int64_t batches,
                               int64_t layers);

}  // namespace moe
