// Completes a training step: backward, all-reduces, updates.
#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/graph/autodiff.h"
#include "engine/graph/op_def.h"
#include "engine/model/model.h"

namespace moe {
namespace {

using Gradients = std::vector<std::pair<TensorId, TensorId>>;  // (parameter, its gradient)

/// Gradients that share an all-reduce, in the order in which they are complete.
struct Bucket {
  Group group;
  std::vector<size_t> gradients;
  Bytes bytes = 0;
};

/// Returns the buckets, ordered by when their last gradient is complete.
std::vector<Bucket> buckets_of(const Graph& graph, const Gradients& gradients, Bytes bucket_bytes,
                               const Grid& grid) {
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Group group = copies(grid, graph.tensor(gradients[i].first).held);
    if (group.size == 1) continue;
    const auto same = [&group](const Bucket& bucket) { return bucket.group == group; };
    auto open = std::find_if(buckets.rbegin(), buckets.rend(), same);
    if (open == buckets.rend() || open->bytes >= bucket_bytes) {
      buckets.push_back({group, {}});
      open = buckets.rbegin();
    }
    open->gradients.push_back(i);
    open->bytes += graph.bytes(gradients[i].second);
  }
  std::sort(buckets.begin(), buckets.end(), [](const Bucket& a, const Bucket& b) {
    return a.gradients.back() < b.gradients.back();
  });
  return buckets;
}

/// An op, and the op that it follows in program order.
using Moves = std::vector<std::pair<OpId, OpId>>;

/// Sums the gradients of parameters of which neighbouring ranks hold the same part (Held::same)
/// over these ranks, and returns which op each sum is to follow.
Moves sum_same_parts(Graph& graph, Gradients& gradients) {
  const std::vector<OpId> producers = graph.producers();
  Moves moves;
  for (auto& [param, gradient] : gradients) {
    const Held held = graph.tensor(param).held;
    if (held.same == 1 || held.moe) continue;
    const OpId maker = producers[gradient.index()];
    const OpId id = graph.add_op("all_reduce", "all_reduce." + graph.tensor(param).name, {gradient},
                                 group_attrs({held.same, 1}, graph.num_ranks), Phase::kBackward);
    graph.op(id).segment = Segment::kUpdate;
    graph.op(id).layer = graph.op(maker).layer;
    graph.tensor(graph.out(id)).held = held;
    gradient = graph.out(id);
    moves.emplace_back(id, maker);
  }
  return moves;
}

/// Appends an all-reduce per bucket and replaces the gradients by its outputs. Returns each with
/// the op that completes its last gradient.
Moves add_sums(Graph& graph, Gradients& gradients, const std::vector<Bucket>& buckets) {
  const std::vector<OpId> producers = graph.producers();
  Moves ready;
  for (const Bucket& bucket : buckets) {
    std::vector<TensorId> inputs;
    for (const size_t i : bucket.gradients) inputs.push_back(gradients[i].second);
    const OpId last = producers[inputs.back().index()];
    const OpId id = graph.add_op("all_reduce", fmt::format("all_reduce.{}", ready.size()), inputs,
                                 group_attrs(bucket.group, graph.num_ranks), Phase::kBackward);
    graph.op(id).segment = Segment::kUpdate;
    graph.op(id).layer = graph.op(last).layer;
    for (size_t j = 0; j < inputs.size(); ++j) {
      graph.tensor(graph.out(id, j)).held = graph.tensor(inputs[j]).held;
      gradients[bucket.gradients[j]].second = graph.out(id, j);
    }
    ready.emplace_back(id, last);
  }
  return ready;
}

/// Gives the gradients of parameters, and what follows from them, the type.
void store_gradients(Graph& graph, NumberType type) {
  if (type == NumberType::kPlain) return;
  for (const OpId id : graph.op_ids()) {
    Op& op = graph.op(id);
    if (op.phase != Phase::kBackward) continue;
    if (op.is_dw) op.attrs["store"] = std::string(name_of(type));
    const std::vector<TensorSpec> specs = graph.def(op).infer(graph, op);
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (op.outputs[o].valid()) graph.tensor(op.outputs[o]).dtype = specs[o].dtype;
    }
  }
}

/// Adds a state tensor of the shape of `param`.
TensorId add_state(Graph& graph, TensorId param, DType dtype, const char* suffix) {
  Tensor state = graph.tensor(param);
  state.name += suffix;
  state.dtype = dtype;
  state.kind = TensorKind::kState;
  return graph.add_tensor(std::move(state));
}

/// Whether weight decay applies to `param`; see Adamw.
bool decays(const Tensor& param) {
  return param.shape.size() >= (param.held.moe ? 3 : 2);
}

OpId add_update(Graph& graph, TensorId param, TensorId gradient, const OptimizerSpec& o,
                const ModelSpec& model) {
  const std::string name = graph.tensor(param).name;
  const DType moments = dtype_of(model.dtypes.moments, model.dtype);
  const auto and_master = [&](std::vector<TensorId> operands) {
    if (model.dtypes.master) {
      operands.push_back(add_state(graph, param, DType::kF32, ".master"));
    }
    return operands;
  };
  if (const Sgd* const sgd = std::get_if<Sgd>(&o)) {
    const TensorId v = add_state(graph, param, moments, ".v");
    return graph.add_op("sgd", name + ".sgd", and_master({param, v, gradient}),
                        {{"lr", sgd->lr}, {"momentum", sgd->momentum}}, Phase::kUpdate);
  }
  const Adamw& adamw = std::get<Adamw>(o);
  const TensorId m = add_state(graph, param, moments, ".m");
  const TensorId v = add_state(graph, param, moments, ".v");
  const Attrs attrs = {{"lr", adamw.lr},
                       {"beta1", adamw.beta1},
                       {"beta2", adamw.beta2},
                       {"eps", adamw.eps},
                       {"weight_decay", decays(graph.tensor(param)) ? adamw.weight_decay : 0.0}};
  return graph.add_op("adamw", name + ".adamw", and_master({param, m, v, gradient}), attrs,
                      Phase::kUpdate);
}

void add_updates(Graph& graph, const Gradients& gradients, const OptimizerSpec& optimizer,
                 const ModelSpec& model) {
  for (const auto& [param, gradient] : gradients) {
    graph.op(add_update(graph, param, gradient, optimizer, model)).segment = Segment::kUpdate;
  }
}

/// Adds the sums of gradients over the stages that hold a parameter. Gradients that another stage
/// takes are removed from the list.
void sum_over_stages(Graph& graph, Gradients& gradients, std::span<const SharedParam> shared,
                     int64_t stage) {
  for (const SharedParam& param : shared) {
    const auto at = std::find_if(gradients.begin(), gradients.end(), [&](const auto& g) {
      return graph.tensor(g.first).name == param.name;
    });
    if (at == gradients.end()) continue;
    const bool first = stage <= param.other;
    const OpId id =
        graph.add_op("sum_copies",
                     fmt::format("{}.sum_copies{}", param.name,
                                 param.role == SharedParam::Role::kMeets ? "" : ".here"),
                     {at->second},
                     {{"what", param.name},
                      {"from_stage", first ? stage : param.other},
                      {"to_stage", first ? param.other : stage},
                      {"role", std::string(name_of(param.role))}},
                     Phase::kBackward);
    graph.op(id).segment = Segment::kHandoff;
    graph.tensor(graph.out(id)).held = graph.tensor(at->second).held;
    if (param.role == SharedParam::Role::kGives) {
      gradients.erase(at);
    } else {
      at->second = graph.out(id);
    }
  }
  // By when they are complete.
  std::stable_sort(gradients.begin(), gradients.end(),
                   [](const auto& a, const auto& b) { return a.second < b.second; });
}

/// Returns the order of all ops, of which those in `moves` directly follow the op that they name.
std::vector<OpId> order_with(const Graph& graph, const Moves& moves) {
  std::vector<std::vector<OpId>> followers(graph.num_ops());
  std::vector<bool> follows(graph.num_ops());
  for (const auto& [op, after] : moves) {
    followers[after.index()].push_back(op);
    follows[op.index()] = true;
  }
  std::vector<OpId> order, next;  // next: a stack
  order.reserve(graph.num_ops());
  for (const OpId id : graph.op_ids()) {
    if (follows[id.index()]) continue;
    next.push_back(id);
    while (!next.empty()) {
      const OpId op = next.back();
      next.pop_back();
      order.push_back(op);
      next.insert(next.end(), followers[op.index()].rbegin(), followers[op.index()].rend());
    }
  }
  return order;
}

/// Returns the graph with the updates of routers' biases, which the forward ends with, behind the
/// other updates: compute before them must not wait for the sums over ranks that they read.
Graph with_biases_last(const Graph& graph) {
  const std::vector<OpId> producers = graph.producers();
  const auto summed = [&](TensorId t) {
    const OpId maker = t.valid() ? producers[t.index()] : OpId();
    return maker.valid() && carries(graph, maker, Payload::kGradients);
  };
  std::vector<OpId> order, last;
  bool forward = true;
  for (const OpId id : graph.op_ids()) {
    const Op& op = graph.op(id);
    forward = forward && op.phase != Phase::kBackward;
    const bool waits = forward && op.phase == Phase::kUpdate &&
                       std::any_of(op.inputs.begin(), op.inputs.end(), summed);
    (waits ? last : order).push_back(id);
  }
  if (last.empty()) return graph;
  order.insert(order.end(), last.begin(), last.end());
  return with_order(graph, order);
}

}  // namespace

void add_backward_and_update(Graph& graph, const OptimizerSpec& optimizer, const GradientSync& sync,
                             const ModelSpec& model, std::span<const SharedParam> shared,
                             int64_t stage) {
  Gradients gradients = autodiff(graph, has_loss(graph) ? loss_of(graph) : TensorId());
  store_gradients(graph, model.dtypes.gradients);
  sum_over_stages(graph, gradients, shared, stage);
  Moves moves = sum_same_parts(graph, gradients);
  const std::vector<Bucket> buckets =
      buckets_of(graph, gradients, sync.bucket_bytes, model.grid(graph.num_ranks));
  const Moves ready = add_sums(graph, gradients, buckets);
  add_updates(graph, gradients, optimizer, model);
  if (sync.place == ReducePlace::kReady) moves.insert(moves.end(), ready.begin(), ready.end());
  if (!moves.empty()) graph = with_order(graph, order_with(graph, moves));
  graph = with_biases_last(graph);
}

}  // namespace moe
