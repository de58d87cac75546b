#include "engine/replay/replay.h"

#include <cmath>
#include <memory>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
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
  Costs(const Graph& graph, const CostModel& cost, RoutedWorkOf routed)
      : graph_(graph), cost_(cost), work_(std::move(routed)) {}

  Nanoseconds op_ns(OpId op, int32_t rank) const {
    const RoutedWork* const routed = work_of(op, rank);
    return routed == nullptr ? cost_.op_ns(graph_, op) : cost_.routed_ns(graph_, op, *routed);
  }

  std::optional<NetworkOp> chunk_of(OpId op, int64_t chunks) const {
    std::optional<NetworkOp> whole = transfer(op);
    if (whole && chunks > 1) whole = moe::chunk_of(std::move(*whole), chunks);
    return whole;
  }

  /// Returns the duration of one chunk: its closed form, scaled by the same factor by which the
  /// cost model scales the closed form of the whole op.
  Nanoseconds chunk_ns(OpId op, int64_t chunks) const {
    const Nanoseconds whole = op_ns(op, 0);
    const std::optional<NetworkOp> chunk = chunk_of(op, chunks);
    if (!chunk) return (whole + chunks - 1) / chunks;
    const auto closed = [&](const NetworkOp& transfer) {
      return static_cast<double>(alone_ns(*cost_.network(), transfer));
    };
    return checked_ns(static_cast<double>(whole) * closed(*chunk) / closed(*transfer(op)), [&] {
      return fmt::format("one of {} chunks of op '{}'", chunks, graph_.op(op).name);
    });
  }

 private:
  const RoutedWork* work_of(OpId op, int32_t rank) const {
    return work_ ? work_(op, rank) : nullptr;
  }

  std::optional<NetworkOp> transfer(OpId op) const {
    const RoutedWork* const routed = work_of(op, 0);
    if (routed == nullptr) return cost_.transfer(graph_, op);
    if (cost_.network() == nullptr) return std::nullopt;
    return transfer_on(*cost_.network(), graph_, op, *routed);
  }

  const Graph& graph_;
  const CostModel& cost_;
  const RoutedWorkOf work_;
};

}  // namespace

ReplayInput replay_input(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
                         const CostModel& cost, RoutedWorkOf routed, int32_t num_ranks) {
  const auto costs = std::make_shared<const Costs>(graph, cost, std::move(routed));
  return {.graph = graph,
          .schedule = schedule,
          .orders = orders,
          .num_ranks = num_ranks,
          .duration_ns = [costs](OpId op, int32_t rank) { return costs->op_ns(op, rank); },
          .handoff_ns = cost.handoff_ns(),
          .chunk_ns = [costs](OpId op, int64_t chunks) { return costs->chunk_ns(op, chunks); },
          .network = cost.network(),
          .transfer =
              [costs, &schedule](OpId op, int64_t chunks) {
                std::optional<NetworkOp> chunk = costs->chunk_of(op, chunks);
                if (chunk) chunk->priority = schedule.priority_of(op);
                return chunk;
              },
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
      busy[lane.index()] = checked_ns(busy[lane.index()] + ns, before);
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
