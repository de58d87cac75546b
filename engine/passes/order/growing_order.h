// The order between ops, by data, mutation and order edges, while a scheduler adds edges to it:
// what it asks before each one, so that no edge closes a cycle. Not a transitive closure: a
// question is a search, which is cheap while edges are few.
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
  /// By data and mutation, without order edges.
  const std::vector<OpId>& preds(OpId op) const { return deps_.preds[op.index()]; }

  /// The same, and order edges.
  const std::vector<OpId>& succs(OpId op) const { return deps_.succs[op.index()]; }

  /// Whether `to` has to come after `from`; false for from == to.
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
