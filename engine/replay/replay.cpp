#include "engine/replay/replay.h"

#include <vector>

#include "engine/base/errors.h"
#include "engine/replay/engine.h"

namespace moe {

Timeline replay(const ReplayInput& input) {
  MOE_CHECK(input.num_ranks >= 1, "{} ranks", input.num_ranks);
  return Engine(input).run();
}

ReplayInput replay_input(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
                         const CostModel& cost) {
  return {.graph = graph,
          .schedule = schedule,
          .orders = orders,
          .duration_ns = [&](OpId op, int32_t) { return cost.op_ns(graph, op); },
          .handoff_ns = cost.handoff_ns(),
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
    Nanoseconds& lane = busy[schedule.lane_of[op.index()].index()];
    lane += ns;
    bound.critical_path_ns = std::max(bound.critical_path_ns, end[op.index()]);
    bound.busiest_lane_ns = std::max(bound.busiest_lane_ns, lane);
  }
  return bound;
}

}  // namespace moe
