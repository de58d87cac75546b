// Schedule: on which lane each op runs and in which order, beside the graph's data edges. Every
// order edge says which stage added it and why. lane_orders() turns the wish into one sequence per
// lane, which simulator and executors follow on lanes that run in order.
//
// A comm lane may instead pick its next op while the step runs (Pick), and several lanes may share
// a network exclusively, one transfer at a time. Such lanes belong to an arbiter, which chooses for
// all members of the collectives at once, among the ops that every member has posted: local choices
// would differ and wait for each other. A transfer that has begun is never interrupted, but an op
// cut into chunks may have others between them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/field.h"
#include "engine/base/ids.h"
#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"

namespace moe {

struct OrderEdge {
  OpId from, to;
  std::string stage;
  std::string why;
};
constexpr auto fields_of(const OrderEdge*) {
  return carried_table(&OrderEdge::from, &OrderEdge::to, &OrderEdge::stage, &OrderEdge::why);
}

/// How a comm lane finds its next op. order: by lane_orders(). priority: of the ops that are posted
/// the one with the highest priority, then the lowest op id. policy: as `choose` says.
enum class Pick : uint8_t { kOrder, kPriority, kPolicy };

/// Takes the ops that may begin, ascending by id and never empty, and returns one of them.
using Choose = std::function<OpId(std::span<const OpId>)>;

/// A lane runs one op at a time. Lane 0 is the compute lane; the others are comm lanes, or the lane
/// of what the host does beside them.
struct Lane {
  std::string name;
  LaneKind kind = LaneKind::kCompute;
  Pick pick = Pick::kOrder;
  Choose choose = nullptr;  // with Pick::kPolicy
  std::string stage = {};   // that set pick
};
constexpr auto fields_of(const Lane*) {
  return field_table<Lane>(carried(&Lane::name), carried(&Lane::kind), carried(&Lane::pick),
                           internal(&Lane::choose, "a function"), carried(&Lane::stage));
}

/// From the begin of `from`, a compute op that announces it, until `until` is posted its arbiter
/// begins nothing of a lower priority (Lina, ATC 2023, section 4.2: all-reduces are held back while
/// an all-to-all is imminent).
struct Hold {
  OpId from, until;
  std::string stage;
};
constexpr auto fields_of(const Hold*) {
  return carried_table(&Hold::from, &Hold::until, &Hold::stage);
}

/// Lanes that share a network exclusively: one transfer at a time, of the highest priority.
struct Exclusive {
  std::vector<LaneId> lanes;
  std::string stage;
};
constexpr auto fields_of(const Exclusive*) {
  return carried_table(&Exclusive::lanes, &Exclusive::stage);
}

struct Decision {
  std::string op;  // or the stage, for what is about no single op
  std::string stage;
  std::string why;
  bool skipped = false;  // the stage was told to do it and did not
};
constexpr auto fields_of(const Decision*) {
  return carried_table(&Decision::op, &Decision::stage, &Decision::why, &Decision::skipped);
}

/// Which stage gave an op its lane, priority or chunks, or made it as a part of another; the
/// pipeline writes it down.
struct Setting {
  enum What : uint8_t { kLane, kPriority, kChunk, kPart };
  OpId op;
  What what = kLane;
  std::string stage;
  int64_t before = 0;  // the lane, priority or chunk that the op had
};
constexpr auto fields_of(const Setting*) {
  return carried_table(&Setting::op, &Setting::what, &Setting::stage, &Setting::before);
}

struct Schedule {
  std::vector<Lane> lanes;
  std::vector<LaneId> lane_of;  // by op
  std::vector<OrderEdge> order_edges;
  std::vector<int64_t> priority;         // by op, higher first; empty: all 0
  std::vector<Bytes> chunk_bytes;        // by op, 0: whole; empty: all whole
  std::vector<std::string> chunk_stage;  // by op, that cut it
  std::vector<Hold> holds;
  std::vector<Exclusive> exclusive;  // a lane stands in one at most
  std::vector<Decision> log;
  std::vector<Setting> settings;

  /// The lane of that name; throws UserError listing the lanes.
  LaneId lane(std::string_view name) const;
  void before(OpId from, OpId to, std::string stage, std::string why);
  int64_t priority_of(OpId op) const { return priority.empty() ? 0 : priority[op.index()]; }
  void set_priority(OpId op, int64_t value);
  /// Cuts the transfer of a collective. Throws UserError naming op and value unless 0 < bytes <=
  /// message_bytes(), or, with both stages, where it is cut already.
  void set_chunk(const Graph& graph, OpId op, Bytes bytes, std::string stage = {});
  /// Gives the lane a discipline other than its order; `choose` with Pick::kPolicy. Throws
  /// UserError naming the lane and both stages where it has one, or for a compute lane.
  void set_pick(LaneId lane, Pick pick, std::string stage, Choose choose = nullptr);
  /// Lets the lanes share a network exclusively. Throws UserError naming the lane (and both stages)
  /// for a compute lane, one that stands there twice or that shares with others already.
  void share_exclusively(std::vector<LaneId> shared, std::string stage);
  /// The ops of the lane run in another order than lane_orders() says.
  bool picks(LaneId lane) const { return lanes[lane.index()].pick != Pick::kOrder; }
};
constexpr auto fields_of(const Schedule*) {
  return carried_table(&Schedule::lanes, &Schedule::lane_of, &Schedule::order_edges,
                       &Schedule::priority, &Schedule::chunk_bytes, &Schedule::chunk_stage,
                       &Schedule::holds, &Schedule::exclusive, &Schedule::log, &Schedule::settings);
}

/// The exclusive lanes that this one is of; null: none.
const Exclusive* exclusive_with(const Schedule& schedule, LaneId lane);

/// The last stage that set it for the op; "" where none did.
std::string set_by(const Schedule& schedule, OpId op, Setting::What what);

/// What a rank holds of a collective's message: the input of an all-to-all, all tensors of an
/// all-reduce.
Bytes message_bytes(const Graph& graph, OpId op);
/// Transfers that the op is cut into; 1 for what is whole, or no collective.
int64_t num_chunks(const Graph& graph, const Schedule& schedule, OpId op);

/// The lanes of one arbiter, ascending.
using Arbiter = std::vector<LaneId>;
/// One for each set of exclusive lanes, and for each other lane that picks.
std::vector<Arbiter> arbiters(const Schedule& schedule);

/// Lanes "compute", "comm" and, where there are such ops, "host", each with the ops of its kind; no
/// order edges.
Schedule default_schedule(const Graph& graph);

/// One sequence of ops per lane.
struct LaneOrders {
  std::vector<std::vector<OpId>> lanes;
};

/// The lanes' sequences: a topological order of data, mutation and order edges that takes the op
/// that stands first in the program whenever there is a choice. Throws RunError for a cycle, naming
/// the ops on it and the stages of its order edges.
LaneOrders lane_orders(const Graph& graph, const Schedule& schedule);

/// Happens-before of an execution in which every op waits for its data and mutation predecessors,
/// its order edges and, on a lane that runs in order, its lane predecessor; vector clocks over
/// chains. A lane that runs in order is a chain; the ops of one that picks make as many as it takes
/// for each to be ordered by edges alone.
class HappensBefore {
 public:
  /// Requires: `orders` holds every op once. Throws RunError naming the cycle when there is one.
  HappensBefore(const Graph& graph, const Schedule& schedule, const LaneOrders& orders);
  /// a is over on every timing when b begins; false for a == b.
  bool before(OpId a, OpId b) const { return index(a) < clock(b)[chain(a)]; }

  size_t num_chains() const { return chains_.lanes.size(); }
  const LaneOrders& chains() const { return chains_; }
  size_t chain(OpId op) const { return static_cast<size_t>(chain_[op.index()]); }
  /// The op's place in its chain.
  int32_t index(OpId op) const { return index_[op.index()]; }
  /// By chain: how many ops of that chain are over when `op` begins. Never falls along a chain.
  std::span<const int32_t> clock(OpId op) const {
    return {&clock_[op.index() * num_chains()], num_chains()};
  }
  /// All ops one by one: each after its predecessors, in program order where there is a choice.
  const std::vector<OpId>& serial() const { return serial_; }

 private:
  LaneOrders chains_;
  std::vector<int32_t> chain_, index_;  // by op
  std::vector<int32_t> clock_;          // by op and chain
  std::vector<OpId> serial_;
};

/// Ops that each op must wait for (data, mutation, order), less those implied by another wait or,
/// on a lane that runs in order, by that lane.
std::vector<std::vector<OpId>> cross_lane_waits(const Graph& graph, const Schedule& schedule,
                                                const LaneOrders& orders);

}  // namespace moe
