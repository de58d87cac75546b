#include "engine/graph/op_def.h"
#include "engine/passes/pass.h"

namespace moe {

/// Makes an all-to-all block the compute lane: the all-to-all waits for the compute op before it in
/// program order, and the compute op after it waits for the all-to-all. The same holds for
/// transfers of experts, unless the option experts is false. All-reduces are not restricted.
Schedule blocking_a2a(const Graph& graph, Schedule schedule, const PassContext& context) {
  const bool experts = std::get<bool>(context.options.at("experts"));
  const auto blocks = [&](OpId op) {
    const Collective collective = graph.def(op).collective;
    return collective == Collective::kAllToAll || (experts && collective == Collective::kExperts);
  };
  // Edges to the nearest compute ops are enough: all edges point forward in the program, so
  // lane_orders keeps each lane in program order, and all other ops of the lane are ordered by it.
  OpId compute;                // the last compute op so far
  std::vector<OpId> blocking;  // blocking transfers after that op
  for (const OpId op : graph.op_ids()) {
    if (blocks(op)) {
      if (compute.valid()) schedule.before(compute, op, context.stage, "compute, then transfer");
      blocking.push_back(op);
    } else if (graph.def(op).lane == LaneKind::kCompute) {
      for (const OpId transfer : blocking) {
        schedule.before(transfer, op, context.stage, "transfer blocks compute");
      }
      blocking.clear();
      compute = op;
    }
  }
  return schedule;
}

}  // namespace moe
