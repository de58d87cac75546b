#include "engine/sim/inference_costs.h"

#include <algorithm>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/graph/op_def.h"
#include "engine/network/contention.h"
#include "engine/ops/defs.h"
#include "engine/ops/ops.h"

namespace moe {
namespace {

/// fc2(GELU(fc1(rows))) of one expert, as the model's forward has it.
Graph expert_graph(const ModelSpec& model, int64_t rows) {
  Graph graph(op_table());
  graph.name = "expert";
  const auto tensor = [&](const char* name, Shape shape, TensorKind kind) {
    const DType dtype = kind == TensorKind::kParam ? wide_dtype(model.dtype) : model.dtype;
    return graph.add_tensor({name, std::move(shape), dtype, kind, true});
  };
  const auto param = [&](const char* name, Shape shape) {
    return tensor(name, std::move(shape), TensorKind::kParam);
  };
  const int64_t d = model.hidden, f = model.ffn_size();
  const Attrs all_rows = {{"rows", std::string("capacity")}};
  TensorId x = tensor("x", {1, rows, d}, TensorKind::kInput);
  x = graph.out(graph.add_op(ops::kExpertLinear, "fc1", {x, param("w1", {1, f, d})}, all_rows));
  x = graph.out(graph.add_op(ops::kGelu, "gelu", {x, param("b1", {1, f})}));
  graph.add_op(ops::kExpertLinear, "fc2", {x, param("w2", {1, d, f}), param("b2", {1, d})},
               all_rows);
  return graph;
}

/// Every token finds a place, and rows in memory are those that there are.
ModelSpec with_full_slots(ModelSpec model) {
  model.capacity_factor = 1;
  return model;
}

}  // namespace

InferenceCosts::InferenceCosts(const ModelSpec& model, const Cluster& cluster)
    : model_(with_full_slots(model)), cost_(cluster, {}), cluster_(cluster) {
  check(model_, cluster.num_devices());
  if (model_.num_moe_layers() == 0) {
    throw user_error("inference: model '{}' has no MoE layer; at least one is allowed", model.name);
  }
  if (model_.expert_group(cluster.num_devices()).size != cluster.num_devices()) {
    throw user_error("inference: model.ep = {}, allowed: all {} devices", model_.ep,
                     cluster.num_devices());
  }
  const int64_t d = model_.hidden, f = model_.ffn_size();
  expert_bytes_ = (2 * d * f + d + f) * dtype_bytes(wide_dtype(model_.dtype));
  read_graph();
}

void InferenceCosts::read_graph() {
  const Graph graph = build_forward(model_, gate_spec(model_), cluster_.num_devices());
  const TensorId loss = loss_of(graph);
  Nanoseconds between = 0;
  int32_t block = -1;
  const auto add = [](Nanoseconds& sum, Nanoseconds ns, const Op& op) {
    sum = checked_ns(sum + ns, [&] {
      return fmt::format("compute between two all-to-alls, up to op '{}',", op.name);
    });
  };
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    const Op& op = graph.op(id);
    // An answer needs no loss.
    if (graph.def(id).collective != Collective::kNone || op.outputs[0] == loss) continue;
    const Nanoseconds ns = cost_.op_ns(graph, id);
    switch (op.segment) {
      case Segment::kGate:
        if (op.layer != block) layers_.push_back({.before = std::exchange(between, 0)});
        block = op.layer;
        add(layers_.back().gate, ns, op);
        break;
      case Segment::kDispatch:
        add(layers_.back().dispatch, ns, op);
        break;
      case Segment::kExpert:
        break;
      case Segment::kCombine:
        add(layers_.back().combine, ns, op);
        break;
      default:
        add(between, ns, op);
    }
  }
  after_ = between;
}

Nanoseconds InferenceCosts::expert_ns(int64_t rows) const {
  if (rows == 0) return 0;
  const auto [found, is_new] = expert_ns_.try_emplace(rows, 0);
  if (is_new) {
    const Graph graph = expert_graph(model_, rows);
    for (size_t i = 0; i < graph.num_ops(); ++i) {
      found->second += cost_.op_ns(graph, OpId(static_cast<int64_t>(i)));
    }
  }
  return found->second;
}

Nanoseconds InferenceCosts::experts_end_ns(const PlacementBounds& bounds,
                                           std::span<const int64_t> rows,
                                           std::span<const Nanoseconds> ready) const {
  Nanoseconds end = 0;
  auto row = rows.begin();
  for (int64_t d = 0; d < bounds.devices; ++d) {
    Nanoseconds at = ready[static_cast<size_t>(d)];
    for (int64_t s = 0; s < bounds.slots(); ++s) {
      int64_t of_slot = 0;
      for (int64_t source = 0; source < bounds.devices; ++source) of_slot += *row++;
      at = checked_ns(at + expert_ns(of_slot), [&] {
        return fmt::format("a batch up to expert {} of device {}", s + 1, d + 1);
      });
    }
    end = std::max(end, at);
  }
  return end;
}

InferenceCosts::Exchanges InferenceCosts::exchanges(const PlacementBounds& bounds,
                                                    std::span<const int64_t> rows) const {
  const auto n = static_cast<size_t>(bounds.devices);
  const double row_bytes = static_cast<double>(model_.hidden * dtype_bytes(model_.dtype));
  std::vector<double> there(n * n), back(n * n);
  auto row = rows.begin();
  for (size_t d = 0; d < n; ++d) {
    for (int64_t s = 0; s < bounds.slots(); ++s) {
      for (size_t source = 0; source < n; ++source) {
        const double bytes = static_cast<double>(*row++) * row_bytes;
        there[source * n + d] += bytes;
        back[d * n + source] += bytes;
      }
    }
  }
  const auto ns = [&](std::vector<double> bytes) {
    return alone_ns(cluster_, {.what = AllToAll{.bytes = std::move(bytes)}});
  };
  return {ns(std::move(there)), ns(std::move(back))};
}

}  // namespace moe
