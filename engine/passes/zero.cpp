#include <algorithm>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/ops.h"
#include "engine/ops/slices.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

bool is_update(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  return op.phase == Phase::kUpdate && graph.tensor(op.inputs[0]).kind == TensorKind::kParam &&
         !mutated_inputs(graph, op).empty();
}

/// Returns the updates that read the sums of an all-reduce of gradients, one for each; none for
/// another op, where a sum has another reader, or where a placement moves the parameters with their
/// whole states or has room for more of them than `experts_per_rank`.
std::vector<OpId> updates_behind(const Graph& graph, OpId sum,
                                 const std::vector<std::vector<OpId>>& readers,
                                 int64_t experts_per_rank) {
  std::vector<OpId> updates;
  if (!carries(graph, sum, Payload::kGradients)) return {};
  for (const TensorId t : graph.op(sum).outputs) {
    const std::vector<OpId>& of = readers[t.index()];
    if (of.size() != 1 || !is_update(graph, of[0])) return {};
    const TensorId parameter = graph.op(of[0]).inputs[0];
    const std::vector<OpId>& uses = readers[parameter.index()];
    const auto moves = [&](OpId use) { return carries(graph, use, Payload::kResidents); };
    const bool spare =
        graph.tensor(parameter).held.moe && graph.tensor(parameter).shape[0] != experts_per_rank;
    if (spare || std::any_of(uses.begin(), uses.end(), moves)) return {};
    updates.push_back(of[0]);
  }
  return updates;
}

/// Makes the all-reduce a reduce-scatter, whose outputs are the rank's slices.
void scatter(Graph& graph, OpId sum) {
  Op& op = graph.op(sum);
  const std::string whole = graph.def(sum).name;
  op.kind = op_table().kind(ops::kReduceScatter.name);
  op.name.replace(0, whole.size(), graph.def(sum).name);
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    graph.tensor(op.outputs[i]).name = output_name(op.name, i);
  }
  infer_shapes(graph, {sum});
}

/// Makes the update one of the rank's slice, with states of the shape of the slice of its gradient.
void slice(Graph& graph, OpId update, const Group& group) {
  Op& op = graph.op(update);
  const Shape shape = graph.tensor(input_of(graph, op, Role::kGradient)).shape;
  for (const TensorId t : op.inputs) {
    if (graph.tensor(t).kind == TensorKind::kState) graph.tensor(t).shape = shape;
  }
  op.rows.group = group;
  op.attrs[ops::kSliced] = int64_t{1};
}

}  // namespace

/// ZeRO stage 1 (Rajbhandari et al. 2020, arXiv 1910.02054, section 5.1; ops/slices.h): a
/// reduce-scatter takes the place of each all-reduce of gradients that updates read, of the
/// parameters in it each rank updates a slice, and an all-gather after all updates fills in the
/// others. Gradients that are summed over no other rank keep their updates, and so do those of
/// experts that a placement moves.
Graph zero(Graph graph, const PassContext& context) {
  if (std::get<double>(context.options.at("stage")) == 0) return graph;
  const std::vector<std::vector<OpId>> readers = readers_of(graph);
  const size_t given = graph.num_ops();
  const int64_t experts =
      context.model.experts / context.model.grid(graph.num_ranks).size(Axis::kEp);
  std::vector<OpId> gathers;
  OpId last;  // of the updates
  for (const OpId id : graph.op_ids(0, given)) {
    if (is_update(graph, id)) last = id;
    const std::vector<OpId> updates = updates_behind(graph, id, readers, experts);
    if (updates.empty()) continue;
    const Group group = graph.op(id).rows.group;
    scatter(graph, id);
    std::vector<TensorId> parameters;
    for (const OpId update : updates) {
      slice(graph, update, group);
      parameters.push_back(graph.op(update).inputs[0]);
    }
    gathers.push_back(graph.add_op(ops::kAllGather, fmt::format("all_gather.{}", gathers.size()),
                                   parameters, attrs_of(RowUse{.group = group}), Phase::kUpdate));
    graph.op(gathers.back()).segment = Segment::kUpdate;
  }
  if (gathers.empty()) {
    context.skip("no gradient is summed over ranks");
    return graph;
  }
  std::vector<OpId> order;
  for (const OpId id : graph.op_ids(0, given)) {
    order.push_back(id);
    if (id == last) order.insert(order.end(), gathers.begin(), gathers.end());
  }
  return with_order(graph, order);
}

}  // namespace moe
