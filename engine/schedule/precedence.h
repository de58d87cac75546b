// The edges that every question about a schedule starts from, and the one wording of a cycle.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// Data, mutation and order edges; with `orders` also the succession of each lane that runs in
/// order. An edge may stand in the lists more than once.
struct Precedence {
  /// Throws RunError when an order edge names an op that the graph does not have.
  Precedence(const Graph& graph, const Schedule& schedule, const LaneOrders* orders = nullptr);

  /// Every op after its predecessors; the op that stands first in the program where there is a
  /// choice. Throws RunError naming the ops of a shortest cycle and what each of its edges is.
  std::vector<OpId> order(const Graph& graph, const Schedule& schedule) const;

  Dependencies deps;
};

/// What orders `to` after `from`: "data, tensor 't'", "order edge of stage 's': why", "overwrites
/// what it reads" or "lane 'comm'", the first that holds.
std::string edge_text(const Graph& graph, const Schedule& schedule, OpId from, OpId to);

}  // namespace moe
