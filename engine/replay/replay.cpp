#include "engine/replay/replay.h"

#include <cmath>
#include <memory>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/graph/micro_batches.h"
#include "engine/replay/engine.h"

namespace moe {

Timeline replay(const ReplayInput& input) {
  MOE_CHECK(input.num_ranks >= 1, "replay: num_ranks = {}, but must be at least 1",
            input.num_ranks);
  return Engine(input).run();
}

namespace {

/// Returns one of `chunks` equal chunks of `op`.
NetworkOp chunk_of(NetworkOp op, int64_t chunks) {
  const auto cut = [chunks](double& bytes) { bytes /= static_cast<double>(chunks); };
  if (auto* a2a = std::get_if<AllToAll>(&op.what)) {
    cut(a2a->bytes_per_pair);
    for (double& bytes : a2a->bytes) cut(bytes);
  } else {
    cut(std::get<AllReduce>(op.what).bytes);
  }
  return op;
}

/// The durations and transfers of a graph's ops, from a cost model and optionally a routing.
class Costs {
 public:
  Costs(const Graph& graph, const CostModel& cost, RoutedWorkOf routed, int64_t num_ranks)
      : graph_(graph), cost_(cost), work_(std::move(routed)), num_ranks_(num_ranks) {}

  Nanoseconds op_ns(OpId op, int32_t rank) const {
    if (const auto routed = work_of(op, rank)) return cost_.routed_ns(graph_, op, *routed);
    const Nanoseconds ns = cost_.op_ns(graph_, op);
    if (group_rank(op, rank) < 0) return ns;
    // A group alone may take less time than all groups at once, which share links.
    const std::optional<NetworkOp> all = cost_.transfer(graph_, op), own = transfer(op, rank);
    if (!all || !own) return ns;
    const auto closed = static_cast<double>(alone_ns(*cost_.network(), *all));
    if (closed == 0) return ns;
    return std::llround(static_cast<double>(ns) *
                        (static_cast<double>(alone_ns(*cost_.network(), *own)) / closed));
  }

  std::optional<NetworkOp> chunk_of(OpId op, int32_t rank, int64_t chunks) const {
    std::optional<NetworkOp> whole = transfer(op, rank);
    if (whole && chunks > 1) whole = moe::chunk_of(std::move(*whole), chunks);
    return whole;
  }

  /// Returns the duration of one chunk: its closed form, scaled by the same factor by which the
  /// cost model scales the closed form of the whole op.
  Nanoseconds chunk_ns(OpId op, int32_t rank, int64_t chunks) const {
    const Nanoseconds whole = op_ns(op, rank);
    const std::optional<NetworkOp> chunk = chunk_of(op, rank, chunks);
    if (!chunk) return (whole + chunks - 1) / chunks;
    const auto closed = [&](const NetworkOp& transfer) {
      return static_cast<double>(alone_ns(*cost_.network(), transfer));
    };
    return checked_ns(
        static_cast<double>(whole) * closed(*chunk) / closed(*transfer(op, rank)),
        [&] { return fmt::format("one of {} chunks of op '{}'", chunks, graph_.op(op).name); });
  }

 private:
  /// Returns `rank` if the op is a collective that runs in several groups, else -1.
  int64_t group_rank(OpId op, int32_t rank) const {
    if (num_ranks_ == 1 || graph_.def(op).collective == Collective::kNone) return -1;
    return simulated_groups(graph_, op, num_ranks_).size < num_ranks_ ? rank : -1;
  }

  std::optional<RoutedWork> work_of(OpId op, int32_t rank) const {
    const RoutedWork* const routed = work_ ? work_(op, rank) : nullptr;
    if (routed == nullptr) return std::nullopt;
    RoutedWork work = *routed;
    work.rank = group_rank(op, rank);
    return work;
  }

  std::optional<NetworkOp> transfer(OpId op, int32_t rank) const {
    if (const auto routed = work_of(op, rank)) {
      if (cost_.network() == nullptr) return std::nullopt;
      return transfer_on(*cost_.network(), graph_, op, *routed);
    }
    std::optional<NetworkOp> moved = cost_.transfer(graph_, op);
    if (moved) std::visit([&](auto& what) { what.rank = group_rank(op, rank); }, moved->what);
    return moved;
  }

  const Graph& graph_;
  const CostModel& cost_;
  const RoutedWorkOf work_;
  const int64_t num_ranks_;
};

}  // namespace

Group simulated_groups(const Graph& graph, OpId op, int64_t num_ranks) {
  if (graph.def(op).collective == Collective::kHandoff) return {1, 1};
  return num_ranks == graph.num_ranks ? group_of(graph, graph.op(op)) : Group{num_ranks, 1};
}

ReplayInput replay_input(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
                         const CostModel& cost, RoutedWorkOf routed, int32_t num_ranks) {
  const auto costs = std::make_shared<const Costs>(graph, cost, std::move(routed), num_ranks);
  const bool host = cost.has_host();
  const auto host_ns = [&graph, &cost](OpId op) { return cost.host_ns(graph, op); };
  const auto host_waits = [&graph, &cost](OpId op) { return cost.host_waits(graph, op); };
  return {.graph = graph,
          .schedule = schedule,
          .orders = orders,
          .num_ranks = num_ranks,
          .pipeline_ranks = num_pipeline_ranks(graph),
          .duration_ns = [costs](OpId op, int32_t rank) { return costs->op_ns(op, rank); },
          .handoff_ns = cost.handoff_ns(),
          .chunk_ns = [costs](OpId op, int32_t rank,
                              int64_t chunks) { return costs->chunk_ns(op, rank, chunks); },
          .network = cost.network(),
          .transfer =
              [costs, &schedule](OpId op, int32_t rank, int64_t chunks) {
                std::optional<NetworkOp> chunk = costs->chunk_of(op, rank, chunks);
                if (chunk) chunk->priority = schedule.priority_of(op);
                return chunk;
              },
          .host_ns = host ? std::function<Nanoseconds(OpId)>(host_ns) : nullptr,
          .host_waits = host ? std::function<bool(OpId)>(host_waits) : nullptr,
          .pick_ns = cost.pick_ns()};
}

LowerBound lower_bound(const ReplayInput& input) {
  const Graph& graph = input.graph;
  const Dependencies deps = dependencies(graph);
  const std::vector<OpId> order = topological_order(graph, deps);
  LowerBound bound;
  for (int32_t rank = 0; rank < input.num_ranks; ++rank) {
    std::vector<Nanoseconds> busy(input.schedule.lanes.size());
    std::vector<Nanoseconds> end(graph.num_ops());
    for (const OpId op : order) {
      const Nanoseconds ns = input.duration_ns(op, rank);
      Nanoseconds begin = 0;
      for (const OpId before : deps.preds[op.index()]) begin = std::max(begin, end[before.index()]);
      const LaneId lane = input.schedule.lane_of[op.index()];
      const auto before = [&] { return fmt::format("a step up to op '{}'", graph.op(op).name); };
      end[op.index()] = checked_ns(begin + ns, before);
      const Nanoseconds used = input.busy_ns ? input.busy_ns(op, rank) : ns;
      busy[lane.index()] = checked_ns(busy[lane.index()] + used, before);
      bound.critical_path_ns = std::max(bound.critical_path_ns, end[op.index()]);
      if (!bound.busiest_lane.valid() || busy[lane.index()] > bound.busiest_lane_ns) {
        bound.busiest_lane = lane;
        bound.busiest_lane_ns = busy[lane.index()];
      }
    }
  }
  return bound;
}

}  // namespace moe
