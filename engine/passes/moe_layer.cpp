#include "engine/passes/moe_layer.h"

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/placed.h"

namespace moe {

std::vector<std::vector<OpId>> readers_of(const Graph& graph) {
  std::vector<std::vector<OpId>> readers(graph.tensors().size());
  for (const OpId id : graph.op_ids()) {
    for (const TensorId t : graph.op(id).inputs) {
      if (!t.valid()) continue;
      std::vector<OpId>& of = readers[t.index()];
      if (of.empty() || of.back() != id) of.push_back(id);
    }
  }
  return readers;
}

std::string counted_by(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  for (const OpId other : graph.op_ids()) {
    if (!is(graph, other, MoeOp::kPlace) || graph.op(other).layer != op.layer) continue;
    return fmt::format("stage '{}', which places the experts",
                       attr_string(graph.op(other), "stage"));
  }
  return op.rows.irregular ? "pass irregular_a2a" : "pass used_rows";
}

RowsOrigin origin_of_rows(const Graph& graph, TensorId rows, std::string_view what) {
  const std::vector<OpId> producer = graph.producers();
  for (OpId at = producer[rows.index()]; at.valid(); at = producer[rows.index()]) {
    const std::vector<TensorId>& inputs = graph.op(at).inputs;
    if (carries(graph, at, Payload::kRows)) {
      const Op& exchange = graph.op(at);
      const TensorId counts = input_of(graph, exchange, Role::kCounts);
      const bool whole = exchange.rows.sources <= 1 || exchange.attrs.contains("repeated");
      if (counts.valid() && whole) return {counts, at};
      throw user_error(
          "op '{}': its rows arrive by op '{}', one step of an all-to-all; list stages that count "
          "rows before hierarchical_a2a, which makes the steps",
          what, graph.op(at).name);
    }
    if (is(graph, at, MoeOp::kDispatch)) {
      const OpId gate = producer[input_of(graph, graph.op(at), Role::kSlotChoice).index()];
      if (gate.valid() && is(graph, gate, MoeOp::kGate)) {
        return {output_of(graph, graph.op(gate), Role::kCounts), OpId()};
      }
      break;
    }
    rows = inputs[0];
  }
  throw user_error(
      "op '{}': its rows come neither from an all-to-all nor from the dispatch after a gate, so no "
      "op counts them",
      what);
}

std::vector<ExchangedLayer> exchanged_layers(const Graph& graph) {
  std::vector<ExchangedLayer> layers;
  ExchangedLayer open;
  for (const OpId op : graph.op_ids()) {
    if (is(graph, op, MoeOp::kGate)) open = {.gate = op};
    if (is(graph, op, MoeOp::kDispatch)) open.dispatch = op;
    if (!carries(graph, op, Payload::kRows)) {
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
  const double slot_ratio = ops::slot_ratio_of(bounds);
  for (const OpId id : {layer.there, layer.back}) {
    Op& op = graph.op(id);
    op.attrs.insert(attrs.begin(), attrs.end());
    op.rows.irregular = op.rows.loose = true;
    if (id == layer.back) op.rows.occupancy = slot_ratio;
    op.inputs = {op.inputs[0], counts, rows, TensorId(), TensorId(), placement};
  }
  for (const OpId id : layer.experts) {
    Op& op = graph.op(id);
    op.attrs["rows"] = std::string("used");
    op.rows.loose = true;
    op.rows.occupancy = slot_ratio;
    set_input(graph, id, Role::kRecvCounts, rows);
  }
}

void infer_shapes(Graph& graph, const std::vector<OpId>& order) {
  for (const OpId id : order) {
    const Op& op = graph.op(id);
    const std::vector<TensorSpec> specs = graph.def(op).infer(graph, op);
    for (size_t i = 0; i < specs.size(); ++i) {
      Tensor& made = graph.tensor(op.outputs[i]);
      made.shape = specs[i].shape;
      made.stored_rows = specs[i].stored_rows;
    }
  }
}

TensorId received_counts(Graph& graph, const RowsOrigin& origin) {
  const TensorId counts = origin.counts;
  if (!origin.exchange.valid()) return counts;
  for (const OpId op : graph.op_ids()) {
    if (carries(graph, op, Payload::kCounts) && graph.op(op).inputs[0] == counts) {
      return graph.out(op);
    }
  }
  const Op gate = graph.op(graph.producers()[counts.index()]);
  const OpId made =
      graph.add_op(ops::kExchangeCounts, gate.name + ".exchange_counts", {counts},
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
  for (const OpId id : graph.op_ids(0, num_given)) {
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
