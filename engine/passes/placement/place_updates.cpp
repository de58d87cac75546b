// The ops that a placement adds around the optimizer's updates: gradients are summed over
// residents, experts move, and the next placement takes effect.
#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/placed.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"
#include "engine/passes/placement/place_experts.h"

namespace moe {
namespace {

/// A layer's `place` op with its placement state and the parameters of its experts.
struct Placed {
  OpId place;
  TensorId state;
  std::vector<TensorId> parameters;
};

std::vector<Placed> placed_layers(const Graph& graph) {
  std::vector<Placed> layers;
  for (const OpId op : graph.op_ids()) {
    if (!is(graph, op, MoeOp::kPlace)) continue;
    layers.push_back({op, input_of(graph, graph.op(op), Role::kPlacement), {}});
    const std::string prefix = fmt::format("b{}.ex.", graph.op(op).layer);
    for (size_t t = 0; t < graph.tensors().size(); ++t) {
      const Tensor& tensor = graph.tensors()[t];
      if (tensor.kind == TensorKind::kParam && tensor.name.starts_with(prefix)) {
        layers.back().parameters.emplace_back(static_cast<int64_t>(t));
      }
    }
  }
  return layers;
}

/// Returns the op of the update phase that overwrites a parameter; throws UserError if none.
OpId update_of(const Graph& graph, TensorId parameter) {
  for (const OpId op : graph.op_ids()) {
    if (graph.op(op).phase != Phase::kUpdate) continue;
    if (!mutated_inputs(graph, graph.op(op)).empty() && graph.op(op).inputs[0] == parameter) {
      return op;
    }
  }
  throw user_error(
      "parameter '{}': no op of the update phase overwrites it, but a placement needs one for "
      "every expert parameter",
      graph.tensor(parameter).name);
}

/// Returns which input of an update is its gradient. Throws UserError when there is none.
size_t gradient_input(const Graph& graph, OpId update) {
  for (size_t i = 0; i < graph.op(update).inputs.size(); ++i) {
    const TensorId t = graph.op(update).inputs[i];
    if (t.valid() && graph.tensor(t).kind == TensorKind::kGradient) return i;
  }
  throw user_error(
      "op '{}' updates an expert parameter, but reads no gradient; it must have one as an input",
      graph.op(update).name);
}

void sum_over_residents(Graph& graph, const Placed& layer, const Attrs& attrs) {
  std::vector<TensorId> inputs = {layer.state};
  std::vector<OpId> updates;
  for (const TensorId t : layer.parameters) {
    updates.push_back(update_of(graph, t));
    inputs.push_back(graph.op(updates.back()).inputs[gradient_input(graph, updates.back())]);
  }
  const std::string name = fmt::format("b{}.moe.sum_residents", graph.op(layer.place).layer);
  const OpId sum = graph.add_op(ops::kSumResidents, name, inputs, attrs, Phase::kBackward);
  graph.op(sum).segment = Segment::kUpdate;
  graph.op(sum).layer = graph.op(layer.place).layer;
  for (size_t i = 0; i < updates.size(); ++i) {
    graph.tensor(graph.out(sum, i)).held.moe = true;
    graph.op(updates[i]).inputs[gradient_input(graph, updates[i])] = graph.out(sum, i);
  }
}

}  // namespace

/// Adds ops around the updates of layers whose placements are for the next step (kNext). Where the
/// policy moves residents, their gradients are summed before the update, and they move with their
/// states after it. Then the next placement takes effect.
Graph add_placement_updates(Graph graph, const PassContext&) {
  for (const Placed& layer : placed_layers(graph)) {
    const Op make = graph.op(layer.place);
    if (attr_string(make, "use") == "now") continue;
    const PlacementBounds bounds = ops::bounds_of(make);
    Attrs attrs = ops::bounds_attrs(bounds);
    attrs.merge(group_attrs(group_of(graph, make), graph.num_ranks));
    const TensorId next = graph.out(layer.place);
    const std::string prefix = fmt::format("b{}.moe.", make.layer);
    if (attr_int(make, "moves") != 0) {
      if (bounds.residents * bounds.devices > bounds.experts) {
        sum_over_residents(graph, layer, attrs);
      }
      std::vector<TensorId> inputs = {layer.state, next};
      double state_bytes = 0;
      for (const TensorId t : layer.parameters) {
        const OpId update = update_of(graph, t);
        for (const int m : mutated_inputs(graph, graph.op(update))) {
          const TensorId moved = graph.op(update).inputs[static_cast<size_t>(m)];
          inputs.push_back(moved);
          if (moved != t) state_bytes += static_cast<double>(graph.bytes(moved) / bounds.residents);
        }
      }
      graph.op(layer.place).attrs["state_bytes"] = state_bytes;
      const OpId move =
          graph.add_op(ops::kMigrate, prefix + "migrate", inputs, attrs, Phase::kUpdate);
      graph.op(move).segment = Segment::kUpdate;
      graph.op(move).layer = make.layer;
    }
    const OpId commit =
        graph.add_op(ops::kCommit, prefix + "commit", {next, layer.state}, {}, Phase::kUpdate);
    graph.op(commit).segment = Segment::kUpdate;
    graph.op(commit).layer = make.layer;
  }
  return compact(graph);
}

}  // namespace moe
