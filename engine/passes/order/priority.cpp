#include <set>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// Returns the comm lanes that have at least one op, but those to other pipeline ranks.
std::vector<LaneId> lanes_in_use(const Graph& graph, const Schedule& schedule) {
  std::set<LaneId> found;
  for (const OpId op : graph.op_ids()) {
    const LaneId lane = schedule.lane_of[op.index()];
    const bool handoff = graph.def(op).collective == Collective::kHandoff;
    if (schedule.lanes[lane.index()].kind == LaneKind::kComm && !handoff) found.insert(lane);
  }
  return {found.begin(), found.end()};
}

/// Returns the combine_dx op that makes the rows which the all-to-all sends, possibly through split
/// and concat ops; invalid when another op makes them.
OpId combine_before(const Graph& graph, const std::vector<OpId>& producers, OpId a2a) {
  OpId op = a2a;
  do {
    op = producers[graph.op(op).inputs[0].index()];
  } while (op.valid() && (is(graph, op, BasicOp::kSplit) || is(graph, op, BasicOp::kConcat)));
  return op.valid() && is(graph, op, MoeOp::kCombineDx) ? op : OpId();
}

}  // namespace

/// Runs all-to-alls before all-reduces, one transfer at a time, and never interrupts a transfer
/// (Lina, section 4.2). Where the two kinds have lanes of their own, the lanes become exclusive and
/// each runs in program order (two queues); a single comm lane chooses its next op by priority.
/// Option hold: when the gradient of a layer's combine begins, it announces the all-to-all that
/// follows it, and no all-reduce begins until that all-to-all is posted. Throws UserError for a
/// lane that already has a discipline.
Schedule priority(const Graph& graph, Schedule schedule, const PassContext& context) {
  const std::vector<LaneId> lanes = lanes_in_use(graph, schedule);
  if (lanes.empty()) {
    context.skip("there are no transfers");
    return schedule;
  }
  const bool alone = lanes.size() == 1;
  for (const LaneId lane : lanes) {
    schedule.set_pick(lane, alone ? Pick::kPriority : Pick::kOrder, context.stage);
  }
  if (!alone) schedule.share_exclusively(lanes, context.stage);
  const bool hold = std::get<bool>(context.options.at("hold"));
  const std::vector<OpId> producers = graph.producers();
  // Layers with an all-to-all of the backward for which all-reduces are held back (held), and
  // layers with one for which they are not (free).
  std::set<int32_t> held, free;
  for (const OpId op : graph.op_ids()) {
    const Collective collective = graph.def(op).collective;
    // An all-reduce of the forward (of counts, for a loss) is not a gradient that can wait: the
    // backward's all-to-alls depend on it.
    const bool sum =
        carries(graph, op, Payload::kGradients) && graph.op(op).phase == Phase::kForward;
    if (sum) schedule.set_priority(op, 1);
    if (collective != Collective::kAllToAll) continue;
    schedule.set_priority(op, 1);
    if (!hold || graph.op(op).phase != Phase::kBackward) continue;
    const OpId announces = combine_before(graph, producers, op);
    if (announces.valid()) {
      schedule.holds.push_back({announces, op, context.stage});
      held.insert(graph.op(op).layer);
    } else {
      free.insert(graph.op(op).layer);
    }
  }
  std::erase_if(free, [&](int32_t layer) { return held.contains(layer); });
  if (!free.empty()) {
    context.skip(fmt::format(
        "hold: in {} of {} MoE layers no all-to-all directly follows the gradient of the combine "
        "(there are ops of another stage between them), so no all-reduce is held back for it",
        free.size(), free.size() + held.size()));
  }
  return schedule;
}

}  // namespace moe
