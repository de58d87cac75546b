// Schedule: on which lane each op runs, and order edges in addition to the graph's data edges. Each
// order edge names the stage that added it and the reason. lane_orders() turns the edges into one
// sequence of ops per lane, which the simulator and the executors follow on lanes that run in
// order.
//
// Instead, a comm lane may pick its next op while the step runs (Pick), and several lanes may share
// a network exclusively, with one transfer at a time. These lanes belong to an arbiter, which
// chooses for all ranks at once among the ops that all ranks have posted; if each rank chose for
// itself, ranks could choose different collectives and deadlock. A transfer is never interrupted,
// but other transfers may run between the chunks of an op.
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

/// How a comm lane chooses its next op. kOrder: in the order of lane_orders(). kPriority: among the
/// posted ops the one with the highest priority, then the lowest op id. kPolicy: the op that
/// Lane::choose returns.
enum class Pick : uint8_t { kOrder, kPriority, kPolicy };

/// A policy function: receives the ops that may begin, ascending by id and never empty, and returns
/// one of them.
using Choose = std::function<OpId(std::span<const OpId>)>;

/// A lane runs one op at a time. Lane 0 is the compute lane; the others are comm lanes, or the lane
/// "host" of the ops that the CPU runs (LaneKind::kHost).
struct Lane {
  std::string name;
  LaneKind kind = LaneKind::kCompute;
  Pick pick = Pick::kOrder;
  Choose choose = nullptr;  // for Pick::kPolicy
  std::string stage = {};   // the stage that set `pick`
};
constexpr auto fields_of(const Lane*) {
  return field_table<Lane>(carried(&Lane::name), carried(&Lane::kind), carried(&Lane::pick),
                           internal(&Lane::choose, "a function"), carried(&Lane::stage));
}

/// From the begin of compute op `from` until `until` is posted, the arbiter of `until` begins no op
/// of a lower priority than `until` (Lina, ATC 2023, section 4.2: all-reduces are held back while
/// an all-to-all is imminent).
struct Hold {
  OpId from, until;
  std::string stage;
};
constexpr auto fields_of(const Hold*) {
  return carried_table(&Hold::from, &Hold::until, &Hold::stage);
}

/// Lanes that share a network exclusively: only one of them transfers at a time, and the transfer
/// with the highest priority comes first.
struct Exclusive {
  std::vector<LaneId> lanes;
  std::string stage;
};
constexpr auto fields_of(const Exclusive*) {
  return carried_table(&Exclusive::lanes, &Exclusive::stage);
}

/// An entry of the schedule's log: what a stage decided, and why.
struct Decision {
  std::string op;  // name of the op; the stage's name for a decision that is not about one op
  std::string stage;
  std::string why;
  bool skipped = false;  // the options of the stage requested it, but the stage did not do it
};
constexpr auto fields_of(const Decision*) {
  return carried_table(&Decision::op, &Decision::stage, &Decision::why, &Decision::skipped);
}

/// Records which stage gave an op its lane, priority or chunk size, or created it as a part of
/// another op. Written by the pipeline.
struct Setting {
  enum What : uint8_t { kLane, kPriority, kChunk, kPart };
  OpId op;
  What what = kLane;
  std::string stage;
  int64_t before = 0;  // the lane, priority or chunk size that the op had before
};
constexpr auto fields_of(const Setting*) {
  return carried_table(&Setting::op, &Setting::what, &Setting::stage, &Setting::before);
}

struct Schedule {
  std::vector<Lane> lanes;
  std::vector<LaneId> lane_of;  // indexed by op
  std::vector<OrderEdge> order_edges;
  std::vector<int64_t> priority;         // per op, higher first; empty means all 0
  std::vector<Bytes> chunk_bytes;        // per op, 0 means not cut; empty means no op is cut
  std::vector<std::string> chunk_stage;  // per op: the stage that set its chunk_bytes
  std::vector<Hold> holds;
  std::vector<Exclusive> exclusive;  // a lane is in at most one of these sets
  std::vector<Decision> log;
  std::vector<Setting> settings;

  /// Returns the lane called `name`. If there is none, throws UserError naming all lanes.
  LaneId lane(std::string_view name) const;
  void before(OpId from, OpId to, std::string stage, std::string why);
  int64_t priority_of(OpId op) const { return priority.empty() ? 0 : priority[op.index()]; }
  void set_priority(OpId op, int64_t value);
  /// Cuts the transfer of collective `op` into chunks of `bytes`. Throws UserError naming op and
  /// value unless 0 < bytes <= message_bytes() and there are at most 2^20 chunks; also if the op is
  /// cut already, naming both stages.
  void set_chunk(const Graph& graph, OpId op, Bytes bytes, std::string stage = {});
  /// Sets how `lane` picks its next op; `choose` is the function of Pick::kPolicy. Throws UserError
  /// unless it is a comm lane, and, naming the lane and both stages, if a stage has set it already.
  void set_pick(LaneId lane, Pick pick, std::string stage, Choose choose = nullptr);
  /// Lets the lanes share a network exclusively. Throws UserError naming the lane for one that is
  /// not a comm lane or is listed twice, and, naming both stages, for one that is already in
  /// another exclusive set.
  void share_exclusively(std::vector<LaneId> shared, std::string stage);
  /// Whether the lane picks its next op at run time instead of following lane_orders().
  bool picks(LaneId lane) const { return lanes[lane.index()].pick != Pick::kOrder; }
};
constexpr auto fields_of(const Schedule*) {
  return carried_table(&Schedule::lanes, &Schedule::lane_of, &Schedule::order_edges,
                       &Schedule::priority, &Schedule::chunk_bytes, &Schedule::chunk_stage,
                       &Schedule::holds, &Schedule::exclusive, &Schedule::log, &Schedule::settings);
}

/// Gives the ops of a schedule other numbers. now: indexed by op, its new number, each once.
void renumber(Schedule& schedule, std::span<const OpId> now);

/// Returns the exclusive set that contains `lane`; null if there is none.
const Exclusive* exclusive_with(const Schedule& schedule, LaneId lane);

/// Returns the last stage that set `what` for `op`; "" if no stage did.
std::string set_by(const Schedule& schedule, OpId op, Setting::What what);

/// Returns the bytes of a collective's message on one rank: the first input of an all-to-all, all
/// inputs of an all-reduce; 0 for ops that move experts and for ops that are no collectives.
Bytes message_bytes(const Graph& graph, OpId op);
/// Returns the number of chunks into which the op is cut; 1 for an op that is not cut.
int64_t num_chunks(const Graph& graph, const Schedule& schedule, OpId op);

/// The lanes of one arbiter, in ascending order.
using Arbiter = std::vector<LaneId>;
/// Returns the arbiters: one for each exclusive set, and one for each other lane that picks.
std::vector<Arbiter> arbiters(const Schedule& schedule);

/// Returns a schedule without order edges and with the lanes "compute", "comm" and, if the CPU runs
/// ops of the graph (LaneKind::kHost), "host". Each lane has the ops of its LaneKind.
Schedule default_schedule(const Graph& graph);

/// One sequence of ops per lane.
struct LaneOrders {
  std::vector<std::vector<OpId>> lanes;
};

/// Returns the sequence of each lane: a topological order of data, mutation and order edges, which
/// takes the first op in program order whenever several ops may come next. Throws RunError for a
/// cycle, naming its ops and the stages of its order edges.
LaneOrders lane_orders(const Graph& graph, const Schedule& schedule);

/// The happens-before relation of all executions in which an op waits for its data and mutation
/// predecessors, its order edges and, on a lane that runs in order, the previous op of its lane.
/// Stored as vector clocks over chains, where a chain is a sequence of ops in a fixed order: each
/// lane that runs in order, and as many further chains as needed for the ops of lanes that pick.
class HappensBefore {
 public:
  /// Requires: `orders` holds each op once. Throws RunError naming the cycle if there is one.
  HappensBefore(const Graph& graph, const Schedule& schedule, const LaneOrders& orders);
  /// Returns the relation among some of the ops, numbered by their places in `ops`.
  HappensBefore among(std::span<const OpId> ops) const;
  /// Whether op `a` is over when op `b` begins, whatever the timing; false for a == b.
  bool before(OpId a, OpId b) const { return index(a) < clock(b)[chain(a)]; }

  size_t num_chains() const { return chains_.lanes.size(); }
  const LaneOrders& chains() const { return chains_; }
  size_t chain(OpId op) const { return static_cast<size_t>(chain_[op.index()]); }
  /// Returns the index of `op` in its chain.
  int32_t index(OpId op) const { return index_[op.index()]; }
  /// Returns, per chain, how many of its ops are over, in every timing, when `op` begins. From one
  /// op of a chain to the next, none of these numbers decreases.
  std::span<const int32_t> clock(OpId op) const {
    return {&clock_[op.index() * num_chains()], num_chains()};
  }
  /// Returns all ops in one sequence: each after its predecessors, otherwise in program order.
  const std::vector<OpId>& serial() const { return serial_; }

 private:
  HappensBefore() = default;

  LaneOrders chains_;
  std::vector<int32_t> chain_, index_;  // indexed by op
  std::vector<int32_t> clock_;          // indexed by op * num_chains() + chain
  std::vector<OpId> serial_;
};

/// Returns, for each op, the ops that it must explicitly wait for (data, mutation and order edges),
/// without waits that another wait implies and, on a lane that runs in order, without waits that
/// the order of the lane implies.
std::vector<std::vector<OpId>> cross_lane_waits(const Graph& graph, const Schedule& schedule,
                                                const LaneOrders& orders);

}  // namespace moe
