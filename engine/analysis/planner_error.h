// How far Pro-Prophet's performance model (placement/performance_model.h) is from the steps of a
// run, simulated or executed: what its planners count with, for the very loads and placement of a
// step, beside what that step's spans say. Its figure 13. Not a judge of placements, and not the
// prediction of a step's time: the model knows no latency, and nobody else on the wire.
#pragma once

#include <array>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// What figure 13 tells apart. For each MoE layer and step, of the ops of its kind (cut ops: the
/// sum over parts and chunks):
///   kA2a      (1) beside the transfer of each of the four all-to-alls
///   kExperts  (2) and (3) beside the experts' compute, forward and backward, on the device that
///             computes longest
///   kTrans    (4) beside the transfer of the copies of experts
///   kAgg      (5) beside that of their gradients
/// A transfer lasts from its begin, when the last device has come, until it is over on the last
/// one: late devices count for nothing; others on the wire do and, executed, how late a device
/// wakes at its end.
enum class ModelOp : int32_t { kA2a, kExperts, kTrans, kAgg };
constexpr int32_t kNumModelOps = 4;
/// "a2a", "experts", "trans", "agg"
const char* model_op_name(ModelOp op);

struct ModelSample {
  size_t step = 0;    // of the run, from 0
  int64_t layer = 0;  // block index
  Phase phase = Phase::kForward;
  double estimated_s = 0;
  double real_s = 0;  // by the spans
};

struct ModelError {
  std::vector<ModelSample> samples;  // by step, then layer, forward first
  /// Mean of |estimated - real| / real over `count` samples: those of real_s above 0, and of a run
  /// of several steps not those of the first, as its other times are told. 0 where there are none.
  double mean = 0;
  int64_t count = 0;
};
using ModelErrors = std::array<ModelError, kNumModelOps>;  // by ModelOp

/// Of the layers that a policy places; no samples where there is none, and none of kTrans and kAgg
/// in steps without copies. Requires: the result of a run of this plan.
ModelErrors planner_errors(const Plan& plan, const RunResult& result);

}  // namespace moe
