// Decides which weight gradients (dW) run during which all-to-all: Lancet's greedy best fit (MLSys
// 2024, algorithm 1), an exact solver for small cases, and an upper bound for all cases. The
// problem is the generalized assignment problem: maximize the sum over all-to-alls j of min(t_j,
// sum of t_i over the dW i assigned to j). Invariant: each dW is assigned at most once, and only to
// an all-to-all that it is independent of. Order edges are added in dw_schedule.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/base/units.h"
#include "engine/cost/cost_model.h"
#include "engine/schedule/schedule.h"

namespace moe {

struct OverlapProblem {
  std::vector<Nanoseconds> a2a_ns;         // indexed by all-to-all, in program order
  std::vector<Nanoseconds> dw_ns;          // indexed by dW
  std::vector<std::vector<bool>> allowed;  // [all-to-all][dW]
};

struct OverlapPick {
  size_t a2a, dw;
  Nanoseconds uncovered_ns;  // time of the all-to-all that was uncovered before this pick
};

struct OverlapAssignment {
  std::vector<OverlapPick> picks;  // in the order in which they were made
  Nanoseconds hidden_ns = 0;       // the objective
};

/// Returns the time that the assignment hides: the sum over all-to-alls of min(t_j, sum of its dW).
Nanoseconds hidden_ns(const OverlapProblem& problem, const std::vector<OverlapPick>& picks);

/// Goes through the all-to-alls in order. While a part of an all-to-all is uncovered, it takes the
/// free dW whose time is nearest to the uncovered time t_u (the first of equal ones). overshoot =
/// true, as printed: the last pick may exceed the uncovered time by any amount. overshoot = false:
/// only a dW whose time t satisfies |t_u - t| < t_u is taken. `accept` may refuse a pick for this
/// all-to-all; the dW then remains free for the later ones.
OverlapAssignment assign_greedy(
    const OverlapProblem& problem, bool overshoot,
    const std::function<bool(const OverlapPick&)>& accept = [](const OverlapPick&) {
      return true;
    });

/// The best assignment, by branch and bound: exponential in the number of dW. nullopt if it takes
/// more branches.
std::optional<OverlapAssignment> assign_exact(const OverlapProblem& problem, int64_t most_branches);

/// Returns an upper bound for all assignments: dW may be cut and shared out (a maximum flow).
Nanoseconds overlap_bound(const OverlapProblem& problem);

/// The overlap problem of a graph: its all-to-alls in program order and its dW ops. A dW is allowed
/// for an all-to-all when no path of data, mutation or order edges connects the two.
struct DwCandidates {
  std::vector<OpId> a2a, dw;
  OverlapProblem problem;
};
DwCandidates dw_candidates(const Graph& graph, const Schedule& schedule, const CostModel& cost);

}  // namespace moe
