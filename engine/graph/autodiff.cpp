#include "engine/graph/autodiff.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

bool passes_gradient(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  const bool has_rule = def.gradient != nullptr && def.gradient != no_gradient;
  return has_rule && (def.differentiable == nullptr || def.differentiable(op));
}

/// Returns, per tensor, whether it is a parameter or depends on one through ops with a gradient. An
/// op without inputs that has one receives an activation, which does.
std::vector<bool> tensors_that_need_gradients(const Graph& graph) {
  std::vector<bool> needs(graph.tensors().size());
  for (size_t t = 0; t < needs.size(); ++t) {
    needs[t] = graph.tensors()[t].kind == TensorKind::kParam;
  }
  for (const Op& op : graph.ops()) {
    if (!op.kind.valid() || !passes_gradient(graph, op)) continue;
    const bool any = op.inputs.empty() ||
                     std::any_of(op.inputs.begin(), op.inputs.end(),
                                 [&needs](TensorId t) { return t.valid() && needs[t.index()]; });
    for (const TensorId t : op.outputs) {
      if (any && graph.tensor(t).dtype != DType::kI32) needs[t.index()] = true;
    }
  }
  return needs;
}

/// Checks that every op comes after the producers of its inputs, as the backward visit needs.
void check_program_order(const Graph& graph, const std::vector<OpId>& producers) {
  for (const OpId id : graph.op_ids()) {
    for (const TensorId t : graph.op(id).inputs) {
      MOE_CHECK(!t.valid() || producers[t.index()] < id,
                "op '{}' reads tensor '{}', but comes before op '{}', which produces the tensor",
                graph.op(id).name, graph.tensor(t).name, graph.op(producers[t.index()]).name);
    }
  }
}

}  // namespace

bool GradContext::needs(TensorId tensor) const {
  return tensor.valid() && needs_[tensor.index()];
}

TensorId GradContext::grad(TensorId tensor) const {
  return grads_[tensor.index()];
}

OpId GradContext::emit(std::string_view kind, std::string_view suffix, std::vector<TensorId> inputs,
                       Attrs attrs, bool is_dw) {
  while (!inputs.empty() && !inputs.back().valid()) inputs.pop_back();
  const OpId id = graph_.add_op(kind, fmt::format("{}.{}", op().name, suffix), std::move(inputs),
                                std::move(attrs), Phase::kBackward);
  const Op& forward = op();
  Op& backward = graph_.op(id);
  backward.segment = forward.segment;
  backward.layer = forward.layer;
  backward.part = forward.part;
  backward.is_dw = is_dw;
  backward.of = forward.outputs.empty() ? TensorId() : forward.outputs[0];
  return id;
}

OpId GradContext::emit(const OpDef& def, std::string_view suffix, std::vector<TensorId> inputs,
                       Attrs attrs, bool is_dw) {
  return emit(std::string_view(def.name), suffix, std::move(inputs), std::move(attrs), is_dw);
}

void GradContext::add(TensorId tensor, TensorId partial) {
  TensorId& grad = grads_[tensor.index()];
  if (!grad.valid()) {
    grad = partial;
    return;
  }
  const std::string suffix = fmt::format("sum.{}", graph_.tensor(tensor).name);
  grad = graph_.out(emit(graph_.table().basic(BasicOp::kAdd), suffix, {grad, partial}));
}

void GradContext::set(TensorId tensor, TensorId total) {
  grads_[tensor.index()] = total;
}

std::vector<std::pair<TensorId, TensorId>> autodiff(Graph& graph, TensorId loss) {
  const std::vector<bool> needs = tensors_that_need_gradients(graph);
  const size_t num_forward = graph.num_ops(), num_tensors = graph.tensors().size();
  const std::vector<OpId> producers = graph.producers();
  check_program_order(graph, producers);
  const OpId loss_op = loss.valid() ? producers[loss.index()] : OpId();
  if (loss.valid() && !loss_op.valid()) {
    throw user_error("autodiff: no op produces the loss tensor '{}'", graph.tensor(loss).name);
  }
  std::vector<TensorId> grads(num_tensors);
  for (size_t i = num_forward; i-- > 0;) {
    const OpId id(static_cast<int64_t>(i));
    if (graph.removed(id) || !passes_gradient(graph, graph.op(id))) continue;
    const std::vector<TensorId>& outputs = graph.op(id).outputs;
    // An op without outputs sends its input to where the gradient comes from.
    const bool arrived =
        outputs.empty() || std::any_of(outputs.begin(), outputs.end(),
                                       [&grads](TensorId t) { return grads[t.index()].valid(); });
    if (!arrived && id != loss_op && graph.def(id).loss == Loss::kNone) continue;
    if (graph.op(id).rows.share) {
      throw user_error(
          "op '{}' is one part of a batch (attribute 'share'), for which autodiff has no gradient; "
          "cut the batch after autodiff",
          graph.op(id).name);
    }
    GradContext context(graph, id, grads, needs);
    graph.def(id).gradient(context, id);
  }
  std::vector<std::pair<TensorId, TensorId>> result;
  for (size_t t = 0; t < num_tensors; ++t) {
    if (graph.tensors()[t].kind != TensorKind::kParam || !grads[t].valid()) continue;
    const TensorId param(static_cast<int64_t>(t));
    graph.tensor(grads[t]).held = graph.tensor(param).held;
    result.emplace_back(param, grads[t]);
  }
  // Tensor ids of gradients ascend in the order in which backward ops were appended.
  std::stable_sort(result.begin(), result.end(),
                   [](const auto& a, const auto& b) { return a.second < b.second; });
  return result;
}

}  // namespace moe
