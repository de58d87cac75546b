// Builds the forward graph. Names of ops: b<i>.ln1, b<i>.attn.*, b<i>.ln2, b<i>.mlp.* or b<i>.moe.*
// for block i, then lnf, head, loss. A backward op is named after its forward op.
#include "engine/model/model.h"

#include <unordered_map>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/model/routers.h"
#include "engine/ops/ops.h"
#include "engine/routing/gate_sample.h"

namespace moe {
namespace {

class ForwardBuilder {
 public:
  ForwardBuilder(const ModelSpec& model, const GateSpec& gate, int64_t num_ranks)
      : model_(model), gate_(gate), graph_(op_table()) {
    graph_.name = model.name;
    graph_.num_ranks = num_ranks;
    holders_ = model.expert_group(num_ranks);
  }

  Graph build() {
    const Shape tokens = {model_.batch_per_device, model_.seq};
    ids_ = graph_.add_tensor({"ids", tokens, DType::kI32, TensorKind::kInput});
    const TensorId targets =
        graph_.add_tensor({"targets", tokens, DType::kI32, TensorKind::kInput});
    add_parameters();
    segment_ = Segment::kEmbed;
    TensorId x =
        op("embedding", "embed", {ids_, param("wte"), param("wpe")}, store_attr(model_.dtype));
    for (block_ = 0; block_ < model_.layers; ++block_) {
      x = attention(x);
      x = model_.is_moe(block_) ? moe_ffn(x) : dense_ffn(x);
    }
    block_ = -1;
    segment_ = Segment::kHead;
    x = op("layernorm", "lnf", {x, param("lnf.w"), param("lnf.b")});
    const TensorId logits = op("linear", "head", {x, param("wte")});
    const int64_t global_tokens = tokens[0] * tokens[1] * graph_.num_ranks;
    op("cross_entropy", "loss", {logits, targets},
       {{"scale", 1.0 / static_cast<double>(global_tokens)}});
    add_router_losses(graph_, model_, gate_, routers_);
    return std::move(graph_);
  }

 private:
  void add_parameters() {
    for (const ParamInfo& info : parameters(model_)) {
      Shape shape = info.shape;
      if (info.expert) shape[0] /= holders_.size;
      params_[info.name] = graph_.add_tensor(
          {info.name, shape, wide_dtype(model_.dtype), TensorKind::kParam, info.expert});
    }
  }

  TensorId param(const std::string& name) const { return params_.at(name); }
  TensorId block_param(std::string_view name) const {
    return params_.at(fmt::format("b{}.{}", block_, name));
  }

  OpId add(std::string_view kind, std::string_view name, std::vector<TensorId> inputs,
           Attrs attrs = {}) {
    const std::string full = block_ >= 0 ? fmt::format("b{}.{}", block_, name) : std::string(name);
    const OpId id = graph_.add_op(kind, full, std::move(inputs), std::move(attrs));
    graph_.op(id).segment = segment_;
    graph_.op(id).layer = static_cast<int32_t>(block_);
    return id;
  }

  /// Adds an op and returns its first output.
  TensorId op(std::string_view kind, std::string_view name, std::vector<TensorId> inputs,
              Attrs attrs = {}) {
    return graph_.out(add(kind, name, std::move(inputs), std::move(attrs)));
  }

  TensorId layernorm(const std::string& name, TensorId x) {
    return op("layernorm", name, {x, block_param(name + ".w"), block_param(name + ".b")});
  }

  /// Returns x + attn(LN1(x)).
  TensorId attention(TensorId x) {
    segment_ = Segment::kAttn;
    const TensorId u = layernorm("ln1", x);
    const TensorId qkv =
        op("linear", "attn.qkv", {u, block_param("attn.qkv.w"), block_param("attn.qkv.b")});
    const Attrs heads = {{"heads", model_.heads}};
    TensorId context;
    if (model_.fused_attention) {
      context = op("attention", "attn.core", {qkv}, heads);
    } else {
      const Attrs head_dim = {{"head_dim", model_.hidden / model_.heads}};
      const TensorId score = op("attn_score", "attn.score", {qkv}, heads);
      const TensorId prob = op("attn_softmax", "attn.softmax", {score}, head_dim);
      context = op("attn_context", "attn.context", {prob, qkv}, heads);
    }
    return op("linear", "attn.out",
              {context, block_param("attn.out.w"), block_param("attn.out.b"), x});
  }

  /// Returns x + fc2(GELU(fc1(LN2(x)))).
  TensorId dense_ffn(TensorId x) {
    segment_ = Segment::kMlp;
    TensorId u = layernorm("ln2", x);
    u = op("linear", "mlp.fc1", {u, block_param("fc1.w")});
    u = op("gelu", "mlp.gelu", {u, block_param("fc1.b")});
    return op("linear", "mlp.fc2", {u, block_param("fc2.w"), block_param("fc2.b"), x});
  }

  TensorId moe_ffn(TensorId x) {
    segment_ = Segment::kGate;
    const TensorId u = layernorm("ln2", x);
    const TensorId logits = op("gate_logits", "moe.logits", {u, block_param("gate.w")});
    std::vector<TensorId> gate_inputs = {logits, ids_};
    TensorId bias;
    if (model_.bias_rate > 0) {
      bias = add_bias();
      gate_inputs = {logits, ids_, TensorId(), bias};
    }
    const OpId gate = add("gate", "moe.gate", gate_inputs, gate_attrs());
    routers_.push_back({block_, gate, bias});
    const auto routed = [this, gate](size_t i) { return graph_.out(gate, i); };
    const TensorId weight = routed(1), choice_slot = routed(3), slot_choice = routed(4);
    const TensorId counts = routed(5);
    segment_ = Segment::kDispatch;
    TensorId rows = op("dispatch", "moe.dispatch", {u, slot_choice, choice_slot, counts},
                       {{"k", gate_.columns}});
    rows = exchange("moe.a2a_1", rows, counts, "expert");
    segment_ = Segment::kExpert;
    rows = op("expert_linear", "moe.fc1", {rows, block_param("ex.fc1.w")}, capacity_rows());
    rows = op("gelu", "moe.gelu", {rows, block_param("ex.fc1.b")});
    rows = op("expert_linear", "moe.fc2", {rows, block_param("ex.fc2.w"), block_param("ex.fc2.b")},
              capacity_rows());
    segment_ = Segment::kCombine;
    rows = exchange("moe.a2a_2", rows, counts, "source");
    return op("combine", "moe.combine", {rows, weight, choice_slot, x, slot_choice});
  }

  TensorId add_bias() {
    return graph_.add_tensor(
        {fmt::format("b{}.gate.bias", block_), {model_.experts}, DType::kF32, TensorKind::kState});
  }

  Attrs gate_attrs() const {
    return {{"gate", gate_.name},
            {"k", gate_.k},
            {"columns", gate_.columns},
            {"capacity", gate_.capacity},
            {"scores", gate_.scores},
            {"weight", gate_.weight},
            {"scope", std::string(gate_.batch_scope ? "batch" : "token")}};
  }

  static Attrs capacity_rows() { return {{"rows", std::string("capacity")}}; }

  /// Adds the all-to-all of `rows` and returns its output. Where one rank holds every expert,
  /// returns `rows`: nothing is exchanged, and their shape is [E,C,d] (experts, capacity, hidden).
  TensorId exchange(std::string_view name, TensorId rows, TensorId counts, const char* to) {
    if (holders_.size == 1) return rows;
    Attrs attrs = group_attrs(holders_, graph_.num_ranks);
    attrs["to"] = std::string(to);
    return op("all_to_all", name, {rows, counts}, attrs);
  }

  const ModelSpec& model_;
  const GateSpec& gate_;
  Graph graph_;
  Group holders_;  // a group of ranks that together hold all experts
  std::unordered_map<std::string, TensorId> params_;
  std::vector<Router> routers_;
  TensorId ids_;
  int64_t block_ = -1;
  Segment segment_ = Segment::kEmbed;
};

}  // namespace

GateSpec gate_spec(const ModelSpec& model) {
  return gate_spec(model, builtin_gate(model.gate));
}

Gate routed_gate(std::shared_ptr<const RoutingModel> routing, const ModelSpec& model,
                 int64_t num_ranks) {
  return routed_gate(std::move(routing), num_ranks, model.tokens_per_rank(), model.k,
                     [model](int64_t block) { return model.moe_layer(block); });
}

Gate scored_gate(Gate gate, std::shared_ptr<const RoutingModel> routing, const ModelSpec& model,
                 int64_t num_ranks) {
  return scored_gate(std::move(gate), std::move(routing), num_ranks, model.tokens_per_rank(),
                     [model](int64_t block) { return model.moe_layer(block); });
}

GateUse gate_use(Gate gate, const GateSpec& spec, const ModelSpec& model, int64_t num_ranks) {
  return {.gate = std::move(gate),
          .ranks = num_ranks,
          .tokens = model.tokens_per_rank(),
          .experts = model.experts,
          .k = spec.k,
          .columns = spec.columns,
          .capacity = spec.capacity,
          .vocab = model.vocab,
          .block = [model](int64_t layer) { return model.moe_block(layer); }};
}

GateSpec gate_spec(const ModelSpec& model, const Gate& gate) {
  GateSpec spec;
  spec.name = gate.name;
  spec.k = gate.fixed_k > 0 ? gate.fixed_k : model.k;
  if (spec.k > model.experts) {
    throw user_error(
        "model.gate = '{}' chooses {} experts per token, but there are only model.experts = {}",
        gate.name, spec.k, model.experts);
  }
  spec.columns = gate.columns(spec.k, model.experts);
  spec.capacity =
      gate.capacity(model.tokens_per_rank(), model.experts, spec.k, model.capacity_factor);
  spec.batch_scope = scope_of(gate, model.capacity_factor) == GateScope::kBatch;
  spec.chooser = gate.chooser;
  spec.scores = gate.scores == kernels::ScoreRule::kSoftmax ? "softmax" : "sigmoid";
  switch (gate.weight) {
    case kernels::WeightRule::kProb:
      spec.weight = "prob";
      break;
    case kernels::WeightRule::kRenorm:
      spec.weight = "renorm";
      break;
    case kernels::WeightRule::kOne:
      spec.weight = "one";
      break;
  }
  return spec;
}

Graph build_forward(const ModelSpec& model, const GateSpec& gate, int64_t num_ranks) {
  check(model, num_ranks);
  check_router_losses(model, gate);
  return ForwardBuilder(model, gate, num_ranks).build();
}

TensorId loss_of(const Graph& graph) {
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (!graph.removed(id) && graph.def(id).loss == Loss::kModel) {
      return graph.out(id);
    }
  }
  throw user_error("graph '{}' has no cross_entropy op, which computes the loss", graph.name);
}

}  // namespace moe
