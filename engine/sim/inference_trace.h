// What Lina's inference needs of a routing law, batch after batch: how often each rank chooses each
// expert in each MoE layer, and what the paths of the tokens make expect of the layer
// (placement/popularity.h), from a profile of the batches before. Does not depend on devices, rates
// or the system, so that one trace serves many simulations.
#pragma once

#include <vector>

#include "engine/placement/popularity.h"
#include "engine/routing/law.h"

namespace moe {

struct TraceSpec {
  RoutingQuery first;  // sizes, and the law's step of the first batch; layer is not looked at
  int64_t layers = 1;  // MoE layers
  int64_t profile_batches = 1;  // for the profile, then
  int64_t batches = 1;          // those that are kept
  int64_t path = 3;
  int64_t keep = 0;  // probabilities a path; 0: k
  bool shorter = false;
};

struct InferenceTrace {
  TraceSpec spec;
  std::vector<Loads> loads;         // [batches, layers]
  std::vector<Estimate> estimates;  // [batches, layers], made before the layer; no mass: none
  int64_t paths = 0;                // that the profile knows
};
/// The profile of spec.profile_batches alone. Throws as trace_inference.
PathProfile profile_paths(const RoutingLaw& law, const TraceSpec& spec);
/// Throws UserError naming "inference.<field>", and as the law and check(PathOptions).
InferenceTrace trace_inference(const RoutingLaw& law, const TraceSpec& spec);

/// Lina, figure 9, of a law: add_transitions over the batches, by layer from the second on.
std::vector<Loads> transitions(const RoutingLaw& law, const RoutingQuery& first, int64_t batches,
                               int64_t layers);

}  // namespace moe
