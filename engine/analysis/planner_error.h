// The error of the performance model of the paper Pro-Prophet (placement/performance_model.h), as
// in the paper's figure 13. For each step of a run, simulated or executed, the model's estimates
// for the loads and the placement of that step are compared with the spans of that step. It does
// not judge placements and does not predict step times: the model has no latencies and no other
// traffic on the network.
#pragma once

#include <array>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// The kinds of ops of figure 13. For each MoE layer and step, an equation of the paper is compared
/// with a time of the step (the sum over parts and chunks of ops that are cut):
///   kA2a      Eq. 1 with the transfer of each of the four all-to-alls
///   kExperts  Eq. 2 and 3 with the experts' compute, forward and backward, on the device that
///             computes longest
///   kTrans    Eq. 4 with the transfer that sends copies of experts
///   kAgg      Eq. 5 with the transfer of the gradients of these copies
/// A transfer lasts from its begin, when the last device has posted it, to its end on the last
/// device. So the time does not include waiting for late devices, but it includes delays by other
/// transfers on the network and, in executed runs, the time until a device wakes after the end.
enum class ModelOp : int32_t { kA2a, kExperts, kTrans, kAgg };
constexpr int32_t kNumModelOps = 4;
constexpr std::array<const char*, kNumModelOps> names_of(ModelOp) {
  return {"a2a", "experts", "trans", "agg"};
}

struct ModelSample {
  size_t step = 0;    // step of the run, counted from 0
  int64_t layer = 0;  // block index
  Phase phase = Phase::kForward;
  double estimated_s = 0;
  double real_s = 0;  // from the spans
};

struct ModelError {
  std::vector<ModelSample> samples;  // sorted by step, then layer, forward before backward
  /// Mean of |estimated - real| / real over `count` samples: those with real_s above 0 and, in a
  /// run of several steps, without the first step, as for other times of a run. 0 if no sample
  /// counts.
  double mean = 0;
  int64_t count = 0;
};
using ModelErrors = std::array<ModelError, kNumModelOps>;  // indexed by ModelOp

/// Returns the errors for all layers with a placement policy. Without such layers there are no
/// samples; for a layer and step without copies of experts, there are none of kTrans and kAgg.
/// Requires: `result` is that of a run of `plan`.
ModelErrors planner_errors(const Plan& plan, const RunResult& result);

}  // namespace moe
