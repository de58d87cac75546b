// What weight gradients can hide of a plan's all-to-alls, by its graph alone, whatever its schedule
// does.
#pragma once

#include <optional>

#include "engine/passes/order/dw_schedule.h"
#include "engine/plan.h"

namespace moe {

/// The problem without the all-to-alls that no dW may hide under and the dW that may hide under
/// none.
OverlapProblem without_idle(const OverlapProblem& all);

struct WeightGradientOverlap {
  size_t num_a2a = 0, num_dw = 0;         // that can take part
  Nanoseconds a2a_ns = 0, dw_ns = 0;      // their sums
  Nanoseconds greedy_ns = 0;              // Lancet's greedy choice as printed hides this
  Nanoseconds bound_ns = 0;               // no choice hides more
  std::optional<Nanoseconds> exact_ns{};  // the best choice, where it is found soon
};
WeightGradientOverlap weight_gradient_overlap(const Graph& graph, const CostModel& cost);

}  // namespace moe
