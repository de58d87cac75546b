// How much of a plan's all-to-all time the weight gradients (dW) could hide. This depends on the
// graph and the cost model only, not on the plan's schedule. What a schedule does hide is in
// explain.h.
#pragma once

#include <optional>

#include "engine/passes/order/dw_schedule.h"
#include "engine/plan.h"

namespace moe {

/// Returns `all` without the all-to-alls that no dW may overlap and without the dW that may overlap
/// no all-to-all.
OverlapProblem without_idle(const OverlapProblem& all);

struct WeightGradientOverlap {
  size_t num_a2a = 0, num_dw = 0;     // numbers of ops after without_idle()
  Nanoseconds a2a_ns = 0, dw_ns = 0;  // summed times of these ops
  Nanoseconds greedy_ns = 0;          // hidden by the greedy choice printed in the paper Lancet
  Nanoseconds bound_ns = 0;           // upper bound of the time that any choice hides
  /// Hidden by the best choice; nullopt above 24 dW, or where finding it takes 10^6 branches.
  std::optional<Nanoseconds> exact_ns{};
};
WeightGradientOverlap weight_gradient_overlap(const Graph& graph, const CostModel& cost);

}  // namespace moe
