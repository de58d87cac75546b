#include <map>

#include "engine/base/errors.h"
#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// Returns the op that makes the tensor. Throws UserError naming it unless `is_right`.
OpId maker(const Graph& graph, const std::vector<OpId>& producers, TensorId t, bool (*is_right)(
               const Graph&, OpId), const PassContext& context) {
  const OpId op = producers[t.index()];
  if (op.valid() && is_right(graph, op)) return op;
  throw user_error(
      "stage '{}': op '{}' ({}) is between the dispatch and the combine of block {}, because rows "
      "are cut into parts or rounds or exchanged in two steps; their weights cannot be. Leave out "
      "either this stage or the one that cuts them",
      context.stage, graph.op(op).name, graph.def(op).name, graph.op(op).layer);
}

bool moves_rows(const Graph& graph, OpId op) {
  return carries(graph, op, Payload::kRows);
}
bool is_product(const Graph& graph, OpId op) {
  return is(graph, op, MoeOp::kExpertProduct);
}
bool is_dispatch(const Graph& graph, OpId op) {
  return is(graph, op, MoeOp::kDispatch);
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
  for (size_t i = 0; i < num_ops; ++i) {
    const OpId combine(static_cast<int64_t>(i));
    if (!is(graph, combine, MoeOp::kCombine)) continue;
    const auto made = [&](OpId by, auto is_right) {
      return maker(graph, producers, graph.op(by).inputs[0], is_right, context);
    };
    const auto exchange_before = [&](OpId op) {
      const OpId before = producers[graph.op(op).inputs[0].index()];
      return moves_rows(graph, before) ? before : OpId();
    };
    const OpId back = exchange_before(combine);
    const OpId second = made(back.valid() ? back : combine, is_product);
    const OpId act = producers[graph.op(second).inputs[0].index()];
    if (&graph.def(act) != &ops::kSiluMul || input_of(graph, graph.op(second), Role::kBias).valid()) {
      context.skip(fmt::format("the experts of block {} have no gated activation, or a bias behind "
                               "it, so their weights stay at combine",
                               graph.op(act).layer),
                   graph.op(combine).name);
      continue;
    }
    const OpId first = made(act, is_product);
    const OpId there = exchange_before(first);
    const OpId dispatch = made(there.valid() ? there : first, is_dispatch);
    const Op& slots = graph.op(dispatch);
    const OpId sent = add_like(graph, slots, ops::kDispatchWeight, slots.name + "_weight",
                               {input_of(graph, graph.op(combine), Role::kWeight),
                                input_of(graph, slots, Role::kSlotChoice),
                                input_of(graph, slots, Role::kChoiceSlot)});
    behind[dispatch] = sent;
    TensorId weights = graph.out(sent);
    if (there.valid()) {
      const Op& rows = graph.op(there);
      std::vector<TensorId> inputs = rows.inputs;
      inputs[0] = weights;
      behind[there] = add_like(graph, rows, ops::kAllToAll, rows.name + ".weight", inputs,
                               all_attrs(rows));
      weights = graph.out(behind[there]);
    }
    graph.op(act).inputs.resize(ops::kSiluMul.inputs.size());
    graph.op(act).inputs.back() = weights;
    set_input(graph, combine, Role::kWeight, TensorId());
  }
  std::vector<OpId> order;
  for (size_t i = 0; i < num_ops; ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (graph.removed(id)) continue;
    order.push_back(id);
    if (const auto added = behind.find(id); added != behind.end()) order.push_back(added->second);
  }
  return with_order(graph, order);
}

}  // namespace moe
