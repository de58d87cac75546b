#include "engine/graph/op_def.h"
#include "engine/passes/pass.h"

namespace moe {

/// An all-to-all blocks the compute lane: it waits for the compute op before it in program order,
/// and the compute op after it waits for it. So do experts that travel, unless experts = false.
/// All-reduces stay free.
Schedule blocking_a2a(const Graph& graph, Schedule schedule, const PassContext& context) {
  const bool experts = std::get<bool>(context.options.at("experts"));
  const auto blocks = [&](OpId op) {
    const Collective collective = graph.def(op).collective;
    return collective == Collective::kAllToAll || (experts && collective == Collective::kExperts);
  };
  // Edges to the neighbours are enough: all edges point forward in the program, so lane_orders
  // keeps each lane in program order, and what is further away follows along the lane.
  OpId compute;                // the last compute op so far
  std::vector<OpId> blocking;  // transfers since then
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
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
