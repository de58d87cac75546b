// Schedule: on which lane each op runs and in which order, beside the graph's data edges. Every
// order edge says which stage added it and why. lane_orders() turns the wish into one sequence a
// lane, the only order that simulator and executors follow.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"
#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"

namespace moe {

struct OrderEdge {
  OpId from, to;
  std::string stage;
  std::string why;
};

/// A lane runs one op at a time. Lane 0 is the compute lane; the others are comm lanes.
struct Lane {
  std::string name;
  LaneKind kind = LaneKind::kCompute;
};

struct Decision {
  std::string op;
  std::string stage;
  std::string why;
};

struct Schedule {
  std::vector<Lane> lanes;
  std::vector<LaneId> lane_of;  // by op
  std::vector<OrderEdge> order_edges;
  std::vector<Decision> log;

  /// The lane of that name; throws UserError listing the lanes.
  LaneId lane(std::string_view name) const;
  void before(OpId from, OpId to, std::string stage, std::string why);
};

/// Lanes "compute" and "comm"; compute ops on the first, collectives on the second; no order edges.
Schedule default_schedule(const Graph& graph);

/// One sequence of ops a lane.
struct LaneOrders {
  std::vector<std::vector<OpId>> lanes;
};

/// The lanes' sequences: a topological order of data, mutation and order edges that takes the op
/// that stands first in the program whenever there is a choice. Throws RunError for a cycle, naming
/// the ops on it and the stages of its order edges.
LaneOrders lane_orders(const Graph& graph, const Schedule& schedule);

/// Happens-before of an execution in which every op waits for its lane predecessor, its data and
/// mutation predecessors and its order edges; vector clocks over lanes.
class HappensBefore {
 public:
  /// Requires: `orders` holds every op once. Throws RunError naming the cycle when there is one.
  HappensBefore(const Graph& graph, const Schedule& schedule, const LaneOrders& orders);
  /// a is over on every timing when b begins; false for a == b.
  bool before(OpId a, OpId b) const { return index(a) < clock(b)[lane(a)]; }

  size_t num_lanes() const { return num_lanes_; }
  size_t lane(OpId op) const { return static_cast<size_t>(lane_[op.index()]); }
  /// The op's place in its lane's order.
  int32_t index(OpId op) const { return index_[op.index()]; }
  /// By lane: how many ops of that lane are over when `op` begins. Never falls along a lane.
  std::span<const int32_t> clock(OpId op) const {
    return {&clock_[op.index() * num_lanes_], num_lanes_};
  }
  /// All ops one by one: each after its predecessors, in program order where there is a choice.
  const std::vector<OpId>& serial() const { return serial_; }

 private:
  size_t num_lanes_;
  std::vector<int32_t> lane_, index_;  // by op
  std::vector<int32_t> clock_;         // by op and lane
  std::vector<OpId> serial_;
};

/// Ops of other lanes that each op must wait for (data, mutation, order), less those implied by
/// another wait or by its own lane.
std::vector<std::vector<OpId>> cross_lane_waits(const Graph& graph, const Schedule& schedule,
                                                const LaneOrders& orders);

}  // namespace moe
