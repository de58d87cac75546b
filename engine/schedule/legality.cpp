#include "engine/schedule/legality.h"

#include <algorithm>
#include <limits>

#include "engine/base/errors.h"
#include "engine/graph/joined.h"
#include "engine/graph/op_def.h"
#include "engine/schedule/precedence.h"
#include "engine/schedule/slots.h"
#include "engine/schedule/storage.h"

namespace moe {
namespace {

/// Returns the row ends (Piece::end) of the last part of the batch that the op joins, where all
/// rows of the batch end; an invalid id if the op joins nothing.
TensorId end_of_rows(const Graph& graph, const Op& op) {
  const std::vector<Piece> joined = pieces(graph, op);
  return joined.empty() ? TensorId() : joined.back().end;
}

/// The checks of check_legal(), except those of storage, and the functions that name lanes and
/// stages in their messages.
class LegalityChecker {
 public:
  LegalityChecker(const Graph& graph, const Schedule& schedule)
      : graph_(graph), schedule_(schedule) {}

  void check_lanes() const {
    if (schedule_.lane_of.size() != graph_.num_ops()) {
      throw run_error("illegal schedule: it has lanes for {} ops, but the graph has {} ops",
                      schedule_.lane_of.size(), graph_.num_ops());
    }
    for (const OpId op : graph_.op_ids()) {
      const LaneId lane = schedule_.lane_of[op.index()];
      if (!lane.valid() || lane.index() >= schedule_.lanes.size()) {
        throw run_error(
            "illegal schedule: op '{}' is on lane number {}, but there are {} lanes ({})",
            graph_.op(op).name, lane.value, schedule_.lanes.size(), stages(op));
      }
      if (schedule_.lanes[lane.index()].kind != graph_.def(op).lane) {
        throw run_error(
            "illegal schedule: op '{}' is on lane '{}', but an op of kind {} needs a {} lane ({})",
            graph_.op(op).name, lane_name(op), graph_.def(op).name, name_of(graph_.def(op).lane),
            stages(op));
      }
    }
  }

  /// Checks that only comm lanes pick their next op or share a network, and that no lane has two
  /// arbiters.
  void check_disciplines() const {
    std::vector<bool> arbitrated(schedule_.lanes.size());
    for (const Arbiter& arbiter : arbiters(schedule_)) {
      for (const LaneId id : arbiter) {
        MOE_CHECK(id.valid() && id.index() < schedule_.lanes.size(),
                  "an arbiter has lane number {}, must be a lane of the schedule, which has {}",
                  id.value, schedule_.lanes.size());
        const Lane& lane = schedule_.lanes[id.index()];
        if (lane.kind != LaneKind::kComm) {
          throw run_error(
              "illegal schedule: lane '{}' is a {} lane; only comm lanes can pick their next op or "
              "share a network exclusively (stage '{}')",
              lane.name, name_of(lane.kind), lane.stage);
        }
        if (arbitrated[id.index()]) {
          throw run_error(
              "illegal schedule: lane '{}' is in two groups of exclusive lanes, must be in at most "
              "one (stage '{}')",
              lane.name, lane.stage);
        }
        arbitrated[id.index()] = true;
      }
    }
    MOE_CHECK(schedule_.priority.empty() || schedule_.priority.size() == graph_.num_ops(),
              "the schedule has {} priorities, must have none or one for each of the {} ops",
              schedule_.priority.size(), graph_.num_ops());
  }

  void check_holds(const LaneOrders& orders) const {
    if (schedule_.holds.empty()) return;
    std::vector<bool> arbitrated(schedule_.lanes.size());
    for (const Arbiter& arbiter : arbiters(schedule_)) {
      for (const LaneId lane : arbiter) arbitrated[lane.index()] = true;
    }
    int64_t highest = std::numeric_limits<int64_t>::min();
    for (const Hold& hold : schedule_.holds) {
      highest = std::max(highest, schedule_.priority_of(hold.until));
    }
    const Precedence edges(graph_, schedule_, &orders);
    for (const Hold& hold : schedule_.holds) check_hold(edges, hold, highest, arbitrated);
  }

  void check_each_op_once(const LaneOrders& orders, size_t rank) const {
    if (orders.lanes.size() != schedule_.lanes.size()) {
      throw run_error("illegal schedule: rank {} has {} lanes, but the schedule has {}", rank,
                      orders.lanes.size(), schedule_.lanes.size());
    }
    std::vector<bool> seen(graph_.num_ops());
    for (size_t l = 0; l < orders.lanes.size(); ++l) {
      for (const OpId op : orders.lanes[l]) {
        if (!op.valid() || op.index() >= graph_.num_ops()) {
          throw run_error(
              "illegal schedule: lane '{}' of rank {} has op number {}, but the graph has {} ops",
              schedule_.lanes[l].name, rank, op.value, graph_.num_ops());
        }
        const char* wrong = nullptr;
        if (seen[op.index()]) wrong = "a second time";
        if (schedule_.lane_of[op.index()].index() != l) wrong = "instead";
        if (wrong != nullptr) {
          throw run_error(
              "illegal schedule: op '{}' must be on lane '{}' once, but is on lane '{}' of rank {} "
              "{} ({})",
              graph_.op(op).name, lane_name(op), schedule_.lanes[l].name, rank, wrong, stages(op));
        }
        seen[op.index()] = true;
      }
    }
    for (size_t i = 0; i < seen.size(); ++i) {
      const OpId op(static_cast<int64_t>(i));
      if (!seen[i]) {
        throw run_error("illegal schedule: op '{}' is missing from lane '{}' of rank {} ({})",
                        graph_.op(op).name, lane_name(op), rank, stages(op));
      }
    }
  }

  void check_edges_on_lanes(const LaneOrders& orders, size_t rank) const {
    std::vector<size_t> place(graph_.num_ops());
    for (const std::vector<OpId>& lane : orders.lanes) {
      for (size_t i = 0; i < lane.size(); ++i) place[lane[i].index()] = i;
    }
    const Precedence edges(graph_, schedule_);
    for (const std::vector<OpId>& lane : orders.lanes) {
      for (const OpId op : lane) {
        for (const OpId before : edges.deps.preds[op.index()]) {
          if (schedule_.lane_of[before.index()] != schedule_.lane_of[op.index()] ||
              place[before.index()] < place[op.index()]) {
            continue;
          }
          throw run_error(
              "illegal schedule: op '{}' comes before op '{}' on lane '{}' of rank {}, but must "
              "wait for it ({}; {})",
              graph_.op(op).name, graph_.op(before).name, lane_name(op), rank,
              edge_text(graph_, schedule_, before, op), stages(op));
        }
      }
    }
  }

  void check_same_collectives(std::span<const LaneOrders> ranks, size_t rank) const {
    for (size_t l = 0; l < schedule_.lanes.size(); ++l) {
      if (schedule_.lanes[l].kind != LaneKind::kComm) continue;
      // On a lane that picks, the arbiter chooses the same op for all ranks.
      if (schedule_.picks(LaneId(static_cast<int64_t>(l)))) continue;
      const std::vector<OpId>&first = ranks[0].lanes[l], &mine = ranks[rank].lanes[l];
      const auto [a, b] = std::mismatch(first.begin(), first.end(), mine.begin(), mine.end());
      if (a == first.end()) continue;  // every rank has each op once, so the lanes are equally long
      throw run_error(
          "illegal schedule: ranks run different collectives on lane '{}': number {} is op '{}' on "
          "rank 0 and op '{}' on rank {} ({}; {})",
          schedule_.lanes[l].name, a - first.begin() + 1, graph_.op(*a).name, graph_.op(*b).name,
          rank, stages(*a), stages(*b));
    }
  }

  void check_counts() const {
    const std::vector<OpId> producer = graph_.producers();
    for (const OpId id : graph_.op_ids()) {
      const Op& op = graph_.op(id);
      if (graph_.def(op).collective != Collective::kAllToAll || !op.rows.irregular) {
        continue;
      }
      const TensorId given = input_of(graph_, op, Role::kCounts);
      if (!given.valid()) {
        throw run_error(
            "illegal schedule: op '{}' on lane '{}' is irregular, so it must have an input of "
            "counts ({})",
            op.name, lane_name(id), stages(id));
      }
      const OpId counts = routing_of(producer, given), rows = routing_of_rows(producer, id);
      if (counts.valid() && counts == rows) continue;
      const auto name = [&](OpId o) { return o.valid() ? graph_.op(o).name : "(none)"; };
      throw run_error(
          "illegal schedule: op '{}' on lane '{}' takes its counts from the routing of op '{}', "
          "but its rows from that of op '{}'; must be the same op ({})",
          op.name, lane_name(id), name(counts), name(rows), stages(id));
    }
  }

  std::string lane_name(OpId op) const {
    return schedule_.lanes[schedule_.lane_of[op.index()].index()].name;
  }

 private:
  /// Checks that no hold can block an op for which `until` waits, which would be a deadlock. Ops on
  /// lanes with an arbiter that must run between `from` and `until` need a priority of at least
  /// `highest`, the highest priority of Hold::until over all holds.
  void check_hold(const Precedence& edges, const Hold& hold, int64_t highest,
                  const std::vector<bool>& arbitrated) const {
    const auto lane = [&](OpId op) { return schedule_.lane_of[op.index()].index(); };
    const std::string names = fmt::format("'{}' to '{}' (stage '{}')", graph_.op(hold.from).name,
                                          graph_.op(hold.until).name, hold.stage);
    if (!arbitrated[lane(hold.until)] || graph_.def(hold.from).lane != LaneKind::kCompute) {
      throw run_error(
          "illegal schedule: hold {}: it must be from a compute op to an op on a lane that picks "
          "its next op or is exclusive",
          names);
    }
    std::vector<bool> seen(graph_.num_ops());
    std::vector<OpId> open{hold.until};
    bool announced = false;
    while (!open.empty()) {
      const OpId op = open.back();
      open.pop_back();
      announced |= op == hold.from;
      if (op != hold.until && arbitrated[lane(op)] && schedule_.priority_of(op) < highest) {
        throw run_error(
            "illegal schedule: hold {}: it would hold back op '{}' of priority {}, for which '{}' "
            "waits; hold nothing back (priority {{ hold = false }}, or a discipline without hold), "
            "or give '{}' a priority of {}",
            names, graph_.op(op).name, schedule_.priority_of(op), graph_.op(hold.until).name,
            graph_.op(op).name, highest);
      }
      if (op == hold.from) continue;  // `from` has begun, so the ops for which it waited are over
      for (const OpId before : edges.deps.preds[op.index()]) {
        if (!seen[before.index()]) open.push_back(before);
        seen[before.index()] = true;
      }
    }
    if (!announced) {
      throw run_error("illegal schedule: hold {}: the first op must come before the second", names);
    }
  }

  /// Returns the stages that influenced the position of `op`: "stage 's1' 's2'" or "program order".
  std::string stages(OpId op) const {
    std::vector<std::string> names;
    const auto add = [&names](const std::string& name) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    };
    for (const OrderEdge& edge : schedule_.order_edges) {
      if (edge.from == op || edge.to == op) add(edge.stage);
    }
    for (const Decision& decision : schedule_.log) {
      if (decision.op == graph_.op(op).name) add(decision.stage);
    }
    if (names.empty()) return "program order";
    std::string text = "stage";
    for (const std::string& name : names) text += fmt::format(" '{}'", name);
    return text;
  }

  /// Returns the op that produced the routing by which the rows of all-to-all `op` were laid out:
  /// goes back from the rows through their producers to the first op that reads an index map.
  OpId routing_of_rows(const std::vector<OpId>& producer, OpId op) const {
    for (OpId at = producer[graph_.op(op).inputs[0].index()]; at.valid();) {
      const std::vector<TensorId>& inputs = graph_.op(at).inputs;
      const TensorId end = end_of_rows(graph_, graph_.op(at));
      if (end.valid()) return routing_of(producer, end);
      for (const TensorId t : inputs) {
        if (!t.valid() || graph_.tensor(t).dtype != DType::kI32) continue;
        if (producer[t.index()].valid()) return routing_of(producer, t);
      }
      if (inputs.empty() || !inputs[0].valid()) return {};
      at = producer[inputs[0].index()];
    }
    return {};
  }

  /// Returns the op (a gate) that produced the routing from which the index tensor `indices` comes.
  /// Goes back through ops that turn index tensors into others, such as an exchange of counts. For
  /// a batch that is routed in parts, it is the op of the first part. Invalid if there is none.
  OpId routing_of(const std::vector<OpId>& producer, TensorId indices) const {
    while (producer[indices.index()].valid()) {
      const OpId made = producer[indices.index()];
      if (const TensorId end = end_of_rows(graph_, graph_.op(made)); end.valid()) {
        indices = end;
        continue;
      }
      const std::vector<TensorId>& inputs = graph_.op(made).inputs;
      TensorId from = inputs.empty() ? TensorId() : inputs[0];
      for (const BeginInput& begin : graph_.def(made).begins) {
        const auto at = static_cast<size_t>(begin.input);
        if (begin.of_output >= 0 && at < inputs.size() && inputs[at].valid()) from = inputs[at];
      }
      if (!from.valid() || graph_.tensor(from).dtype != DType::kI32) return made;
      indices = from;
    }
    return {};
  }

  const Graph& graph_;
  const Schedule& schedule_;
};

/// Checks that ranks do not wait for each other in a deadlock; a collective is one event of all
/// ranks. The orders of each rank alone may be without a cycle while two ranks wait for each other
/// on two comm lanes.
void check_joint_order(const Graph& graph, const Schedule& schedule,
                       std::span<const LaneOrders> ranks) {
  const size_t n = graph.num_ops();
  const auto node = [&](size_t rank, OpId op) {
    const bool shared = graph.def(op).lane == LaneKind::kComm;
    return (shared ? 0 : rank) * n + op.index();
  };
  std::vector<std::vector<size_t>> succs(ranks.size() * n);
  std::vector<int32_t> waiting(succs.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Precedence edges(graph, schedule, &ranks[r]);
    for (size_t i = 0; i < n; ++i) {
      for (const OpId to : edges.deps.succs[i]) {
        succs[node(r, OpId(static_cast<int64_t>(i)))].push_back(node(r, to));
        ++waiting[node(r, to)];
      }
    }
  }
  std::vector<size_t> ready;
  for (size_t i = 0; i < succs.size(); ++i) {
    if (waiting[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    const size_t at = ready.back();
    ready.pop_back();
    for (const size_t to : succs[at]) {
      if (--waiting[to] == 0) ready.push_back(to);
    }
  }
  for (size_t i = 0; i < n; ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (waiting[i] == 0 || graph.def(op).lane != LaneKind::kComm) continue;
    throw run_error(
        "illegal schedule: ranks wait for each other: op '{}' on lane '{}' is never posted by all "
        "ranks, because the orders of their other lanes differ (stage 'lane orders')",
        graph.op(op).name, schedule.lanes[schedule.lane_of[i].index()].name);
  }
}

/// Returns the orders that differ from each other.
std::vector<LaneOrders> distinct(std::span<const LaneOrders> ranks) {
  std::vector<LaneOrders> all;
  for (const LaneOrders& rank : ranks) {
    const auto same = [&](const LaneOrders& other) { return other.lanes == rank.lanes; };
    if (std::none_of(all.begin(), all.end(), same)) all.push_back(rank);
  }
  return all;
}

}  // namespace

void check_order(const Graph& graph, const Schedule& schedule, std::span<const LaneOrders> ranks) {
  MOE_CHECK(!ranks.empty(), "there must be the lane orders of at least 1 rank");
  const LegalityChecker checker(graph, schedule);
  checker.check_lanes();
  checker.check_disciplines();
  checker.check_counts();
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto same = [&](const LaneOrders& other) { return other.lanes == ranks[r].lanes; };
    if (std::any_of(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(r), same)) continue;
    checker.check_each_op_once(ranks[r], r);
    checker.check_edges_on_lanes(ranks[r], r);
    checker.check_holds(ranks[r]);
    checker.check_same_collectives(ranks, r);
  }
  if (const auto all = distinct(ranks); all.size() > 1) check_joint_order(graph, schedule, all);
}

void check_storage(const Graph& graph, const Schedule& schedule, const HappensBefore& hb,
                   const MemoryPlan& memory) {
  MOE_CHECK(memory.buffers.size() == graph.tensors().size(),
            "a memory plan of {} buffers for {} tensors: must be one per tensor",
            memory.buffers.size(), graph.tensors().size());
  const JoinedTensors joined(graph);
  check_places(graph, joined, memory);
  check_reuse(graph, schedule, joined, hb, memory);
  check_slots(graph, joined, hb);
}

void check_legal(const Graph& graph, const Schedule& schedule, std::span<const LaneOrders> ranks,
                 const MemoryPlan& memory) {
  check_order(graph, schedule, ranks);
  for (const LaneOrders& rank : distinct(ranks)) {
    check_storage(graph, schedule, HappensBefore(graph, schedule, rank), memory);
  }
}

}  // namespace moe
