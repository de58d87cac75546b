#include "engine/model/model.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/graph/op_def.h"
#include "engine/routing/gate_sample.h"

namespace moe {
namespace {

constexpr int64_t kMaxIndex = int64_t{1} << 31;  // most choices: index maps are i32

void check_range(const char* field, int64_t value, int64_t lo, int64_t hi, const char* of_hi) {
  if (value < lo || value > hi) {
    throw user_error("model.{} = {}, allowed: {} to {}, the number of {}", field, value, lo, hi,
                     of_hi);
  }
}

/// Returns the number of a block among the blocks with an MoE layer.
int64_t index_of(const std::vector<int64_t>& moe_blocks, int64_t block) {
  return std::lower_bound(moe_blocks.begin(), moe_blocks.end(), block) - moe_blocks.begin();
}

bool chooses_by_batch(const Gate& gate, double factor) {
  return scope_of(gate, factor) == GateScope::kBatch &&
         (gate.chooser == Chooser::kExpert || !gate.token_scope_without_capacity);
}

/// Whether the ranks that share sequences route their tokens together. batch_scope: the gate's;
/// by_batch: chooses_by_batch(). Throws as set_slots() does.
bool routes_together(std::string_view gate, bool batch_scope, bool by_batch,
                     const ModelSpec& model) {
  if (model.ranks_per_share() == 1) return false;
  if (model.route_over == RouteOver::kRank && by_batch) {
    throw user_error(
        "model.route_over = 'rank': the gate '{}' needs the whole batch, which {} ranks over tp "
        "and cp share; omit this field, or give 'sequence'",
        gate.substr(0, gate.find('@')), model.ranks_per_share());
  }
  if (model.route_over == RouteOver::kSequence && model.capacity_factor <= 0 && !batch_scope) {
    throw user_error(
        "model.route_over = 'sequence': has no effect without a capacity, since the gate '{}' "
        "chooses for each token alone; omit this field, or give a capacity_factor",
        gate.substr(0, gate.find('@')));
  }
  return model.route_over == RouteOver::kByGate ? by_batch
                                                : model.route_over == RouteOver::kSequence;
}

/// Throws UserError for the routing of a run where ranks are to route together.
void check_by_rank(const Gate& gate, const ModelSpec& model) {
  const bool by_batch = chooses_by_batch(gate, model.capacity_factor);
  if (!routes_together(gate.name, gate.scope == GateScope::kBatch, by_batch, model)) return;
  throw user_error(
      "model.route_over = 'sequence': an executed run takes the choices of model.routing for the "
      "tokens of each rank; omit one of them, or take a gate that is not '{}'",
      gate.name);
}

/// Returns the op that computes the loss; an invalid id if there is none.
OpId loss_op(const Graph& graph) {
  for (const OpId id : graph.op_ids()) {
    if (graph.def(id).loss == Loss::kModel) return id;
  }
  return {};
}

}  // namespace

int64_t Model::moe_layer(int64_t block) const {
  return index_of(moe_blocks, block);
}

void check(const ModelSpec& model, int64_t num_ranks) {
  check_fields(model, "model");
  check_range("k", model.k, 1, model.experts, "experts");
  check_range("ep", model.ep, 0, num_ranks, "ranks");
  if (num_ranks < 1 || num_ranks % model.etp != 0) {
    throw user_error("model.etp = {}, allowed: a divisor of the {} ranks", model.etp, num_ranks);
  }
  const int64_t left = num_ranks / model.etp, ep = model.ep > 0 ? model.ep : left;
  if (left % ep != 0) {
    throw user_error("model.ep = {}, allowed: a divisor of the {} ranks{}, or 0 for all of them",
                     ep, left, model.etp > 1 ? fmt::format(" over etp = {}", model.etp) : "");
  }
  const int64_t parts = model.ranks_per_share() * (model.cp > 1 ? 2 : 1);
  if (num_ranks % model.ranks_per_share() != 0 || model.seq % parts != 0) {
    throw user_error("model.tp = {}{}, allowed: a divisor of the {} ranks, and of model.seq = {}{}",
                     model.tp, model.cp > 1 ? fmt::format(" with cp = {}", model.cp) : "",
                     num_ranks, model.seq,
                     model.cp > 1 ? " (2 * tp * cp: a rank has two parts of a sequence)" : "");
  }
  if (model.experts % ep != 0) {
    throw user_error("model.experts = {} cannot be divided evenly over {} ranks{}", model.experts,
                     ep, model.ep > 0 ? " of an expert-parallel group (model.ep)" : "");
  }
  if (model.dtype == DType::kI32) {
    throw user_error("model.dtype = {}, allowed: f16, bf16, f32, f64", name_of(model.dtype));
  }
  if (model.dtypes.gradients != NumberType::kPlain && model.dtype == DType::kF64) {
    throw user_error("model.dtypes.gradients = '{}', allowed with f64: plain",
                     name_of(model.dtypes.gradients));
  }
  const int64_t tokens = model.batch_per_device * model.seq;
  if (tokens >= kMaxIndex / model.k ||
      tokens * num_ranks >= (int64_t{1} << 40) / model.micro_batches) {
    throw user_error(
        "model.batch_per_device * model.seq = {} tokens per rank is too many: k * tokens per rank "
        "must be below 2^31, and tokens of a step on all ranks below 2^40",
        tokens);
  }
}

DType dtype_of(NumberType type, DType activations) {
  switch (type) {
    case NumberType::kPlain:
      break;
    case NumberType::kF16:
      return DType::kF16;
    case NumberType::kBF16:
      return DType::kBF16;
    case NumberType::kF32:
      return DType::kF32;
  }
  return wide_dtype(activations);
}

void set_router(GateSpec& spec, const ModelSpec& model) {
  spec.scale = model.router.scale;
  spec.groups = model.router.groups;
  if (!spec.groups.limits()) return;
  check(spec.groups, model.experts, spec.k, "model.router");
  if (spec.chooser == Chooser::kRule) {
    throw user_error(
        "model.gate = '{}' chooses without scores, so model.router.groups cannot limit it",
        spec.name);
  }
}

GateSpec gate_spec(const ModelSpec& model) {
  return gate_spec(model, builtin_gate(model.gate));
}

Gate routed_gate(std::shared_ptr<const RoutingModel> routing, const ModelSpec& model,
                 std::vector<int64_t> moe_blocks, int64_t num_ranks) {
  return routed_gate(
      std::move(routing), num_ranks, model.tokens_per_rank(), model.k,
      [blocks = std::move(moe_blocks)](int64_t b) { return index_of(blocks, b); },
      model.micro_batches);
}

Gate routed_gate(std::shared_ptr<const RoutingModel> routing, const Model& model,
                 int64_t num_ranks) {
  Gate gate = routed_gate(std::move(routing), model, model.moe_blocks, num_ranks);
  check_by_rank(gate, model);
  return gate;
}

Gate scored_gate(Gate gate, std::shared_ptr<const RoutingModel> routing, const Model& model,
                 int64_t num_ranks) {
  check_by_rank(gate, model);
  return scored_gate(
      std::move(gate), std::move(routing), num_ranks, model.tokens_per_rank(),
      [blocks = model.moe_blocks](int64_t b) { return index_of(blocks, b); }, model.micro_batches);
}

GateUse gate_use(Gate gate, const GateSpec& spec, const Model& model, int64_t num_ranks) {
  return {.gate = std::move(gate),
          .ranks = num_ranks,
          .tokens = model.tokens_per_rank(),
          .experts = model.experts,
          .k = spec.k,
          .columns = spec.columns,
          .capacity =
              spec.shared_capacity == 0
                  ? spec.capacity
                  : (spec.shared_capacity + model.ranks_per_share() - 1) / model.ranks_per_share(),
          .slots = spec.capacity,
          .vocab = model.vocab,
          .groups = spec.groups,
          .block = [blocks = model.moe_blocks](int64_t layer) {
            return blocks[static_cast<size_t>(layer)];
          }};
}

void set_slots(GateSpec& spec, const ModelSpec& model, bool by_batch,
               const std::function<int64_t(int64_t tokens)>& capacity) {
  const int64_t tokens = model.tokens_per_rank();
  if (!routes_together(spec.name, spec.batch_scope, by_batch, model)) {
    spec.capacity = capacity(tokens);
    return;
  }
  spec.shared_capacity = capacity(tokens * model.ranks_per_share());
  spec.capacity = std::min(tokens, spec.shared_capacity);
  spec.batch_scope = true;
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
  spec.batch_scope = scope_of(gate, model.capacity_factor) == GateScope::kBatch;
  set_slots(spec, model, chooses_by_batch(gate, model.capacity_factor), [&](int64_t tokens) {
    return gate.capacity(tokens, model.experts, spec.k, model.capacity_factor);
  });
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
  const RouterSpec& router = model.router;
  if (gate.takes_best && router.scores != RouterSpec::Scores::kAsGate) {
    spec.scores = name_of(router.scores);
  }
  if (gate.takes_best && router.weight != RouterSpec::Weight::kAsGate) {
    spec.weight = name_of(router.weight);
  }
  set_router(spec, model);
  return spec;
}

bool has_loss(const Graph& graph) {
  return loss_op(graph).valid();
}

TensorId loss_of(const Graph& graph) {
  if (const OpId op = loss_op(graph); op.valid()) return graph.out(op);
  throw user_error("graph '{}' has no cross_entropy op, which computes the loss", graph.name);
}

double reference_init(uint64_t element, uint64_t parameter) {
  return (static_cast<double>(random24(element, parameter)) - 0x1p23) * 0x1p-28;
}

}  // namespace moe
