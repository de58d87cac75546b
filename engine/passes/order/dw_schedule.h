// Which weight gradients hide under which all-to-all: Lancet's greedy best fit (MLSys 2024,
// algorithm 1), an exact solver for small cases, and an upper bound for all. The objective is the
// generalised assignment problem: maximise sum over all-to-alls j of min(t_j, sum of t_i over the
// dW i assigned to j), each dW assigned at most once, and only to an all-to-all that it is
// independent of.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/base/units.h"
#include "engine/cost/cost_model.h"
#include "engine/schedule/schedule.h"

namespace moe {

struct OverlapProblem {
  std::vector<Nanoseconds> a2a_ns;         // by all-to-all, in program order
  std::vector<Nanoseconds> dw_ns;          // by dW
  std::vector<std::vector<bool>> allowed;  // [all-to-all][dW]
};

struct OverlapPick {
  size_t a2a, dw;
  Nanoseconds uncovered_ns;  // of the all-to-all, before this pick
};

struct OverlapAssignment {
  std::vector<OverlapPick> picks;  // in the order in which they were made
  Nanoseconds hidden_ns = 0;       // the objective
};

/// What the assignment hides: sum over all-to-alls of min(t_j, sum of its dW).
Nanoseconds hidden_ns(const OverlapProblem& problem, const std::vector<OverlapPick>& picks);

/// All-to-alls in order; each takes, while some of it is uncovered, the free dW whose time is
/// nearest to what is uncovered (the first of equals). overshoot: as printed, the last pick may be
/// longer than what is uncovered, by any amount; false: only a dW with |t_u - t_j| < t_u is taken.
/// `accept` may refuse a pick for this all-to-all; the dW stays free for the later ones.
OverlapAssignment assign_greedy(
    const OverlapProblem& problem, bool overshoot,
    const std::function<bool(const OverlapPick&)>& accept = [](const OverlapPick&) {
      return true;
    });

/// Branch and bound, exponential in the number of dW: for tests and recipes with up to about 20.
OverlapAssignment assign_exact(const OverlapProblem& problem);

/// Nothing hides more: dW may be cut and shared out (a maximum flow).
Nanoseconds overlap_bound(const OverlapProblem& problem);

/// The problem of a graph: all-to-alls in program order, dW ops without a path to or from them by
/// data, mutation or order edges.
struct DwCandidates {
  std::vector<OpId> a2a, dw;
  OverlapProblem problem;
};
DwCandidates dw_candidates(const Graph& graph, const Schedule& schedule, const CostModel& cost);

}  // namespace moe
