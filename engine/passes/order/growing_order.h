// The order between ops, by data, mutation and order edges, while a scheduler adds edges: the
// scheduler calls path() before it adds an edge, so that no edge closes a cycle. The class keeps no
// transitive closure: each call of path() is a search, which is cheap while there are few edges.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/schedule/schedule.h"

namespace moe {

inline std::vector<Edge> edges_of(const Schedule& schedule) {
  std::vector<Edge> edges;
  for (const OrderEdge& edge : schedule.order_edges) edges.emplace_back(edge.from, edge.to);
  return edges;
}

class GrowingOrder {
 public:
  GrowingOrder(const Graph& graph, const Schedule& schedule) : deps_(dependencies(graph)) {
    for (const auto& [from, to] : edges_of(schedule)) deps_.succs[from.index()].push_back(to);
  }

  void add(OpId from, OpId to) { deps_.succs[from.index()].push_back(to); }
  /// The ops that must end before `op`, by data and mutation only, without order edges.
  const std::vector<OpId>& preds(OpId op) const { return deps_.preds[op.index()]; }

  /// The ops that wait for `op`, by data, mutation and order edges.
  const std::vector<OpId>& succs(OpId op) const { return deps_.succs[op.index()]; }

  /// Returns whether `to` must come after `from`; false for from == to.
  bool path(OpId from, OpId to) const {
    std::vector<bool> seen(deps_.succs.size());
    std::vector<OpId> stack{from};
    while (!stack.empty()) {
      const OpId at = stack.back();
      stack.pop_back();
      for (const OpId next : deps_.succs[at.index()]) {
        if (next == to) return true;
        if (seen[next.index()]) continue;
        seen[next.index()] = true;
        stack.push_back(next);
      }
    }
    return false;
  }

 private:
  Dependencies deps_;
};

}  // namespace moe
