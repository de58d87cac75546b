#include <map>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// Throws UserError for an exchange that a dispatcher cannot move.
void check_exchange(const Graph& graph, const Op& op, const PassContext& context) {
  const std::string& name = std::get<std::string>(context.options.at("dispatcher"));
  const auto refuse = [&](const char* what) {
    throw user_error("dispatcher '{}': op '{}' {}", name, op.name, what);
  };
  const size_t axes =
      graph.tensor(op.inputs[0]).shape.size() + graph.tensor(op.outputs[0]).shape.size();
  if (op.rows.round.of > 1) {
    refuse(
        "goes in rounds, in each of which a rank exchanges rows with one group of ranks alone, so "
        "that none could forward them; leave out fastermoe_pipeline");
  }
  if (axes != 7 || op.attrs.contains("nodes") || op.rows.sources > 0) {
    refuse(
        "is one of two steps, which are a dispatcher of their own (two_level); leave out "
        "hierarchical_a2a");
  }
  if (!op.rows.irregular) {
    refuse("sends padded slots, which are of no token; add the pass irregular_a2a");
  }
  if (std::get<bool>(context.options.at("to_all")) && !op.rows.cut.empty()) {
    refuse(
        "is a part along the rows in use, while an all-gather sends all rows of a token at once; "
        "leave out the stage that cuts them, or take another dispatcher");
  }
}

}  // namespace

/// Lets a dispatcher move the rows of all-to-alls: gives them the choices behind their rows. Where
/// a row stands for several choices (option shares), rows must be copies on the way to the experts
/// and sums on the way back, so the combine's weights go to the exchange before it: the ranks of
/// experts multiply by them what they send, in the backward what they receive.
Graph dispatched(Graph graph, const PassContext& context) {
  std::map<int32_t, OpId> dispatches, combines;  // by block
  std::vector<OpId> exchanges;
  for (const OpId id : graph.op_ids()) {
    if (is(graph, id, MoeOp::kDispatch)) dispatches[graph.op(id).layer] = id;
    if (is(graph, id, MoeOp::kCombine)) combines[graph.op(id).layer] = id;
    // Weights that travel beside rows (weights_at_experts) have one number each.
    const bool rows = carries(graph, id, Payload::kRows);
    if (rows && graph.tensor(graph.out(id)).shape.back() > 1) exchanges.push_back(id);
  }
  const bool shares = std::get<bool>(context.options.at("shares"));
  for (const OpId id : exchanges) {
    const Op& op = graph.op(id);
    check_exchange(graph, op, context);
    const OpId end = (op.rows.to_expert() ? dispatches : combines).at(op.layer);
    set_input(graph, id, Role::kChoiceSlot, input_of(graph, graph.op(end), Role::kChoiceSlot));
    if (op.rows.to_expert() || !shares) continue;
    set_input(graph, id, Role::kWeight, input_of(graph, graph.op(end), Role::kWeight));
  }
  for (const OpId id : exchanges) {
    if (!input_of(graph, graph.op(id), Role::kWeight).valid()) continue;
    set_input(graph, combines.at(graph.op(id).layer), Role::kWeight, TensorId());
  }
  return graph;
}

}  // namespace moe
