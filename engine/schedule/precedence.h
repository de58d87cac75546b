// Precedence: all edges between the ops of a schedule, in one list that every check and every
// ordering of ops uses. Makes the error message about a cycle in a schedule.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// Data, mutation and order edges; with `orders`, also an edge from each op to the next op of its
/// lane, for lanes that run in order. An edge may be in the lists more than once.
struct Precedence {
  /// Throws RunError if an order edge names an op that is not in the graph.
  Precedence(const Graph& graph, const Schedule& schedule, const LaneOrders* orders = nullptr);

  /// Returns all ops so that each comes after its predecessors; among ops that may come next, the
  /// first in program order is taken. Throws RunError naming the ops of a short cycle and the
  /// reason for each of its edges.
  std::vector<OpId> order(const Graph& graph, const Schedule& schedule) const;

  Dependencies deps;
};

/// Returns the reason why `to` comes after `from`, the first that applies of: "data, tensor 't'",
/// "order edge of stage 's': why", "overwrites what it reads" (`to` overwrites an input of `from`),
/// "lane 'comm'" (the order of that lane).
std::string edge_text(const Graph& graph, const Schedule& schedule, OpId from, OpId to);

}  // namespace moe
