#include <map>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/slices.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// Returns the share of a gradient's square sum that a rank adds to that of all ranks: of one that
/// several ranks hold whole, each adds an equal share.
double share_of(const Graph& graph, const Op& update, OpId maker) {
  if (ops::is_sliced(update) || !maker.valid()) return 1;
  const OpDef& def = graph.def(maker);
  if (def.payload == Payload::kResidentGradients) {
    throw user_error(
        "optimizer.clip_norm: op '{}' sums gradients of experts that are resident on several "
        "devices, so their norm is not known; use a placement without extra residents, or omit "
        "clip_norm",
        graph.op(maker).name);
  }
  if (def.payload != Payload::kGradients) return 1;
  return 1.0 / static_cast<double>(group_of(graph, graph.op(maker)).size);
}

OpId add(Graph& graph, std::string_view kind, const std::string& name, std::vector<TensorId> inputs,
         Attrs attrs) {
  const OpId id = graph.add_op(kind, name, std::move(inputs), std::move(attrs), Phase::kUpdate);
  graph.op(id).segment = Segment::kUpdate;
  return id;
}

}  // namespace

/// Scales the gradients that updates read down to the optimizer's clip_norm (Pascanu et al. 2013,
/// arXiv 1211.5063, section 3.2): each rank sums the squares of its gradients, an exchange of its
/// own sums these over ranks, and all updates wait for it.
Graph clip_gradients(Graph graph, const PassContext& context) {
  const std::vector<OpId> producers = graph.producers();
  std::vector<OpId> updates;
  std::map<double, std::vector<TensorId>> by_share;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (graph.removed(id)) continue;
    const TensorId gradient = input_of(graph, graph.op(id), Role::kGradient);
    if (!gradient.valid()) continue;
    updates.push_back(id);
    by_share[share_of(graph, graph.op(id), producers[gradient.index()])].push_back(gradient);
  }
  TensorId sum;
  int part = 0;
  for (const auto& [share, gradients] : by_share) {
    const std::string number = ++part == 1 ? "" : fmt::format(".{}", part);
    const OpId squares =
        add(graph, ops::kSquareSum.name, "clip.squares" + number, gradients, {{"factor", share}});
    sum = sum.valid() ? graph.out(add(graph, graph.table().basic(BasicOp::kAdd).name,
                                      "clip.sum" + number, {sum, graph.out(squares)}, {}))
                      : graph.out(squares);
  }
  if (graph.num_ranks > 1) {
    sum = graph.out(add(graph, ops::kAllReduce.name, "clip.all_reduce", {sum}, {}));
  }
  std::vector<TensorId> inputs = {sum};
  for (const OpId id : updates) {
    inputs.push_back(input_of(graph, graph.op(id), Role::kGradient));
  }
  const OpId clip = add(graph, ops::kClipGradients.name, "clip.gradients", inputs,
                        {{"norm", clip_norm(context.step.optimizer)}});
  for (size_t i = 0; i < updates.size(); ++i) {
    const TensorId clipped = graph.out(clip, i);
    graph.tensor(clipped).held = graph.tensor(inputs[i + 1]).held;
    graph.tensor(clipped).kind = TensorKind::kGradient;
    set_input(graph, updates[i], Role::kGradient, clipped);
  }
  return graph;
}

}  // namespace moe
