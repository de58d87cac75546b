#include "engine/passes/moe_layer.h"

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"

namespace moe {

std::vector<std::vector<OpId>> readers_of(const Graph& graph) {
  std::vector<std::vector<OpId>> readers(graph.tensors().size());
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (graph.removed(id)) continue;
    for (const TensorId t : graph.op(id).inputs) {
      if (t.valid()) readers[t.index()].push_back(id);
    }
  }
  return readers;
}

bool is_kind(const Graph& graph, OpId op, std::string_view kind) {
  return !graph.removed(op) && kind == graph.def(op).name;
}

std::string counted_by(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId other(static_cast<int64_t>(i));
    if (!is_kind(graph, other, "place") || graph.op(other).layer != op.layer) continue;
    return fmt::format("stage '{}', which places the experts",
                       attr_string(graph.op(other), "stage"));
  }
  return attr_int(op, "irregular") != 0 ? "pass irregular_a2a" : "pass used_rows";
}

RowsOrigin origin_of_rows(const Graph& graph, TensorId rows, std::string_view what) {
  constexpr size_t kCountsOfGate = 5;
  const std::vector<OpId> producer = graph.producers();
  for (OpId at = producer[rows.index()]; at.valid(); at = producer[rows.index()]) {
    const std::vector<TensorId>& inputs = graph.op(at).inputs;
    if (is_kind(graph, at, "all_to_all")) {
      if (inputs.size() > 1 && attr_int(graph.op(at), "sources", 1) == 1) return {inputs[1], at};
      throw user_error(
          "op '{}': its rows come by '{}', one step of an all-to-all; stages that count rows stand "
          "before the one that makes steps (hierarchical_a2a)",
          what, graph.op(at).name);
    }
    if (is_kind(graph, at, "dispatch")) {
      const OpId gate = producer[inputs[1].index()];
      if (gate.valid() && is_kind(graph, gate, "gate")) {
        return {graph.out(gate, kCountsOfGate), OpId()};
      }
      break;
    }
    rows = inputs[0];
  }
  throw user_error("op '{}': no gate is found that counts its rows", what);
}

std::vector<ExchangedLayer> exchanged_layers(const Graph& graph) {
  std::vector<ExchangedLayer> layers;
  ExchangedLayer open;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (is_kind(graph, op, "gate")) open = {.gate = op};
    if (is_kind(graph, op, "dispatch")) open.dispatch = op;
    if (!is_kind(graph, op, "all_to_all")) {
      if (open.there.valid()) open.experts.push_back(op);
    } else if (!open.there.valid()) {
      open.there = op;
    } else {
      open.back = op;
      layers.push_back(std::move(open));
      open = {};
    }
  }
  return layers;
}

void send_by_slot(Graph& graph, const ExchangedLayer& layer, const PlacementBounds& bounds,
                  TensorId counts, TensorId placement, TensorId rows) {
  const Attrs attrs = ops::bounds_attrs(bounds);
  const double occupancy = ops::occupancy_of(bounds);
  for (const OpId id : {layer.there, layer.back}) {
    Op& op = graph.op(id);
    op.attrs.insert(attrs.begin(), attrs.end());
    op.attrs["irregular"] = op.attrs["loose"] = int64_t{1};
    if (id == layer.back) op.attrs["occupancy"] = occupancy;
    op.inputs = {op.inputs[0], counts, rows, TensorId(), TensorId(), placement};
  }
  for (const OpId id : layer.experts) {
    Op& op = graph.op(id);
    op.attrs["rows"] = std::string("used");
    op.attrs["loose"] = int64_t{1};
    op.attrs["occupancy"] = occupancy;
    const size_t at = is_kind(graph, id, "gelu") ? 2 : 3;
    op.inputs.resize(at + 1);
    op.inputs[at] = rows;
  }
}

void infer_shapes(Graph& graph, const std::vector<OpId>& order) {
  for (const OpId id : order) {
    const Op& op = graph.op(id);
    const std::vector<TensorSpec> specs = graph.def(op).infer(graph, op);
    for (size_t i = 0; i < specs.size(); ++i) graph.tensor(op.outputs[i]).shape = specs[i].shape;
  }
}

TensorId received_counts(Graph& graph, const RowsOrigin& origin) {
  const TensorId counts = origin.counts;
  if (!origin.exchange.valid()) return counts;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (is_kind(graph, op, "exchange_counts") && graph.op(op).inputs[0] == counts) {
      return graph.out(op);
    }
  }
  const Op gate = graph.op(graph.producers()[counts.index()]);
  const OpId made =
      graph.add_op("exchange_counts", gate.name + ".exchange_counts", {counts},
                   group_attrs(group_of(graph, graph.op(origin.exchange)), graph.num_ranks));
  graph.op(made).segment = Segment::kDispatch;
  graph.op(made).layer = gate.layer;
  graph.op(made).part = gate.part;
  return graph.out(made);
}

Graph before_first_readers(const Graph& graph, size_t num_given) {
  const std::vector<OpId> producer = graph.producers();
  std::vector<bool> placed(graph.num_ops());
  std::vector<OpId> order;
  for (size_t i = 0; i < num_given; ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (graph.removed(id)) continue;
    for (const TensorId t : graph.op(id).inputs) {
      const OpId made = t.valid() ? producer[t.index()] : OpId();
      if (!made.valid() || made.index() < num_given || placed[made.index()]) continue;
      placed[made.index()] = true;
      order.push_back(made);
    }
    order.push_back(id);
  }
  return with_order(graph, order);
}

}  // namespace moe
