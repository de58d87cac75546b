#include <map>

#include "engine/base/errors.h"
#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// Whether the op is on the way of rows to their experts or back.
bool moves_rows(const Graph& graph, OpId op) {
  const OpDef* const def = &graph.def(op);
  return def->payload == Payload::kRows || def == &ops::kRepeatRows || def == &ops::kSumRepeats;
}
bool is_product(const Graph& graph, OpId op) {
  return is(graph, op, MoeOp::kExpertProduct);
}
bool is_dispatch(const Graph& graph, OpId op) {
  return is(graph, op, MoeOp::kDispatch);
}

/// Finds the ops of an MoE layer from its combine against the data flow.
struct LayerBefore {
  const Graph& graph;
  const std::vector<OpId>& producers;
  const std::string& stage;

  OpId maker(OpId by) const { return producers[graph.op(by).inputs[0].index()]; }
  /// Returns the ops that bring the op's rows, the last first; none where one rank holds all
  /// experts.
  std::vector<OpId> way(OpId by) const {
    std::vector<OpId> ops;
    for (OpId op = maker(by); moves_rows(graph, op); op = maker(op)) ops.push_back(op);
    return ops;
  }
  /// Returns the op that makes the op's rows. Throws UserError naming it unless `is_right`.
  OpId expected(OpId by, bool (*is_right)(const Graph&, OpId)) const {
    const OpId op = maker(by);
    if (is_right(graph, op)) return op;
    throw user_error(
        "stage '{}': op '{}' ({}) is between the dispatch and the combine of block {}, because "
        "rows are cut into parts or rounds or exchanged in two steps; their weights cannot be. "
        "Leave out either this stage or the one that cuts them",
        stage, graph.op(op).name, graph.def(op).name, graph.op(op).layer);
  }
};

/// Adds the ops that bring the weights of the combine to the experts, after the ops `dispatch` and
/// `there`, the last first, that bring the rows, and notes them in `behind`. Returns the weights of
/// the experts' rows.
TensorId send_weights(Graph& graph, OpId combine, OpId dispatch, const std::vector<OpId>& there,
                      std::map<OpId, OpId>& behind) {
  const Op slots = graph.op(dispatch);
  OpId last = behind[dispatch] = add_like(
      graph, slots, ops::kDispatchWeight, slots.name + "_weight",
      {input_of(graph, graph.op(combine), Role::kWeight), input_of(graph, slots, Role::kSlotChoice),
       input_of(graph, slots, Role::kChoiceSlot)});
  for (auto op = there.rbegin(); op != there.rend(); ++op) {
    const Op rows = graph.op(*op);
    std::vector<TensorId> inputs = rows.inputs;
    inputs[0] = graph.out(last);
    last = behind[*op] =
        add_like(graph, rows, graph.def(*op), rows.name + ".weight", inputs, all_attrs(rows));
  }
  return graph.out(last);
}

}  // namespace

/// Moves the weights of an MoE layer's choices from its combine to its experts (Megatron-LM,
/// core/transformer/moe/token_dispatcher.py and experts.py): they go there beside the rows, one
/// number per row, and the gated activation multiplies by them. With y = W2 (w h) the gradient of w
/// is that of the activation's output times h, so the backward reads no row that came back. Leaves
/// layers as they are whose experts have no gated activation, or a bias behind it. Throws UserError
/// for rows that are cut or exchanged in two steps.
Graph weights_at_experts(Graph graph, const PassContext& context) {
  const std::vector<OpId> producers = graph.producers();
  const size_t num_ops = graph.num_ops();
  std::map<OpId, OpId> behind;  // by the op that it follows
  for (const OpId combine : graph.op_ids(0, num_ops)) {
    if (!is(graph, combine, MoeOp::kCombine)) continue;
    const LayerBefore layer{graph, producers, context.stage};
    const std::vector<OpId> back = layer.way(combine);
    const OpId second = layer.expected(back.empty() ? combine : back.back(), is_product);
    const OpId act = layer.maker(second);
    const bool bias = input_of(graph, graph.op(second), Role::kBias).valid();
    if (&graph.def(act) != &ops::kSiluMul || bias) {
      context.skip(fmt::format("the experts of block {} have no gated activation, or a bias behind "
                               "it, so their weights stay at combine",
                               graph.op(act).layer),
                   graph.op(combine).name);
      continue;
    }
    const OpId first = layer.expected(act, is_product);
    const std::vector<OpId> there = layer.way(first);
    const OpId dispatch = layer.expected(there.empty() ? first : there.back(), is_dispatch);
    const TensorId weights = send_weights(graph, combine, dispatch, there, behind);
    graph.op(act).inputs.resize(ops::kSiluMul.inputs.size());
    graph.op(act).inputs.back() = weights;
    set_input(graph, combine, Role::kWeight, TensorId());
  }
  std::vector<OpId> order;
  for (const OpId id : graph.op_ids(0, num_ops)) {
    order.push_back(id);
    if (const auto added = behind.find(id); added != behind.end()) order.push_back(added->second);
  }
  return with_order(graph, order);
}

}  // namespace moe
