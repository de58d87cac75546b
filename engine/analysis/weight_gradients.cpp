#include "engine/analysis/weight_gradients.h"

#include <algorithm>
#include <numeric>

namespace moe {
namespace {

constexpr size_t kMostExact = 24;  // largest number of dW ops for which the exact search runs
constexpr int64_t kMostBranches = 1'000'000;  // of it: about 0.1 s

Nanoseconds sum(const std::vector<Nanoseconds>& ns) {
  return std::accumulate(ns.begin(), ns.end(), Nanoseconds{0});
}

}  // namespace

OverlapProblem without_idle(const OverlapProblem& all) {
  OverlapProblem some;
  std::vector<size_t> kept;
  for (size_t dw = 0; dw < all.dw_ns.size(); ++dw) {
    const auto may = [dw](const std::vector<bool>& row) { return row[dw]; };
    if (!std::any_of(all.allowed.begin(), all.allowed.end(), may)) continue;
    kept.push_back(dw);
    some.dw_ns.push_back(all.dw_ns[dw]);
  }
  for (size_t a = 0; a < all.a2a_ns.size(); ++a) {
    std::vector<bool> row;
    for (const size_t dw : kept) row.push_back(all.allowed[a][dw]);
    if (std::find(row.begin(), row.end(), true) == row.end()) continue;
    some.a2a_ns.push_back(all.a2a_ns[a]);
    some.allowed.push_back(std::move(row));
  }
  return some;
}

WeightGradientOverlap weight_gradient_overlap(const Graph& graph, const CostModel& cost) {
  const OverlapProblem problem =
      without_idle(dw_candidates(graph, default_schedule(graph), cost).problem);
  WeightGradientOverlap overlap = {problem.a2a_ns.size(),
                                   problem.dw_ns.size(),
                                   sum(problem.a2a_ns),
                                   sum(problem.dw_ns),
                                   assign_greedy(problem, true).hidden_ns,
                                   overlap_bound(problem)};
  if (problem.dw_ns.size() > kMostExact) return overlap;
  const auto exact = assign_exact(problem, kMostBranches);
  if (exact) overlap.exact_ns = exact->hidden_ns;
  return overlap;
}

}  // namespace moe
