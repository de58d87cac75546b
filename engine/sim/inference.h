// Lina's inference (USENIX ATC 2023, section 5) over a trace, batch after batch on a
// simulated cluster: experts' popularity estimated from token paths, devices allocated in two
// phases, and what of that is not hidden. Devices go in step: compute before an exchange is the
// same on all; the second all-to-all of a layer begins after the slowest device's experts. No link
// and no core is shared with anything else.
#pragma once

#include <vector>

#include "engine/placement/two_phase.h"
#include "engine/sim/inference_costs.h"
#include "engine/sim/inference_trace.h"

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
  InferenceSystem system = InferenceSystem::kLina;
  bool normalise = false;  // n_e, to as many devices as there are
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
};
/// Throws UserError naming "inference.<field>" where a time or rate makes no sense or the trace has
/// other sizes than the model and the cluster; and as InferenceCosts and two_phase_bounds().
InferenceResult simulate_inference(const InferenceTrace& trace, const InferenceSpec& spec);

/// The least sample that `share` of them do not exceed; share in (0, 1]. Requires: samples.
Nanoseconds percentile(std::vector<Nanoseconds> samples, double share);

}  // namespace moe
