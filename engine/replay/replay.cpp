#include "engine/replay/replay.h"

#include <cmath>
#include <vector>

#include "engine/base/errors.h"
#include "engine/replay/engine.h"

namespace moe {

Timeline replay(const ReplayInput& input) {
  MOE_CHECK(input.num_ranks >= 1, "{} ranks", input.num_ranks);
  return Engine(input).run();
}

namespace {

/// One of so many equal chunks.
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

std::optional<NetworkOp> chunk_of(const CostModel& cost, const Graph& graph, OpId op,
                                  int64_t chunks) {
  std::optional<NetworkOp> whole = cost.transfer(graph, op);
  if (whole) whole = chunk_of(std::move(*whole), chunks);
  return whole;
}

/// Stretched as the model stretches the closed form of the whole.
Nanoseconds chunk_ns(const CostModel& cost, const Graph& graph, OpId op, int64_t chunks) {
  const Nanoseconds whole = cost.op_ns(graph, op);
  const std::optional<NetworkOp> chunk = chunk_of(cost, graph, op, chunks);
  if (!chunk) return (whole + chunks - 1) / chunks;
  const auto closed = [&](const NetworkOp& transfer) {
    return static_cast<double>(alone_ns(*cost.network(), transfer));
  };
  return std::llround(static_cast<double>(whole) * closed(*chunk) /
                      closed(*cost.transfer(graph, op)));
}

}  // namespace

ReplayInput replay_input(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
                         const CostModel& cost) {
  return {.graph = graph,
          .schedule = schedule,
          .orders = orders,
          .duration_ns = [&](OpId op, int32_t) { return cost.op_ns(graph, op); },
          .handoff_ns = cost.handoff_ns(),
          .chunk_ns = [&](OpId op, int64_t chunks) { return chunk_ns(cost, graph, op, chunks); },
          .network = cost.network(),
          .transfer =
              [&](OpId op, int64_t chunks) {
                std::optional<NetworkOp> chunk = chunk_of(cost, graph, op, chunks);
                if (chunk) chunk->priority = schedule.priority_of(op);
                return chunk;
              },
          .pick_ns = cost.pick_ns()};
}

LowerBound lower_bound(const Graph& graph, const Schedule& schedule,
                       const std::function<Nanoseconds(OpId)>& duration_ns) {
  const Dependencies deps = dependencies(graph);
  std::vector<Nanoseconds> busy(schedule.lanes.size());
  std::vector<Nanoseconds> end(graph.num_ops());
  LowerBound bound;
  for (const OpId op : topological_order(graph, deps)) {
    const Nanoseconds ns = duration_ns(op);
    Nanoseconds begin = 0;
    for (const OpId before : deps.preds[op.index()]) begin = std::max(begin, end[before.index()]);
    end[op.index()] = begin + ns;
    const LaneId lane = schedule.lane_of[op.index()];
    busy[lane.index()] += ns;
    bound.critical_path_ns = std::max(bound.critical_path_ns, end[op.index()]);
    if (!bound.busiest_lane.valid() || busy[lane.index()] > bound.busiest_lane_ns) {
      bound.busiest_lane = lane;
      bound.busiest_lane_ns = busy[lane.index()];
    }
  }
  return bound;
}

}  // namespace moe
