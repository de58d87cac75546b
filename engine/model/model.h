// ModelSpec and Workload, and the builder of the training-step graph of a GPT-2 with MoE layers
// (pre-LayerNorm, tied head, an MoE FFN in every odd block; Lancet's instruction list).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/field.h"
#include "engine/base/group.h"
#include "engine/graph/graph.h"
#include "engine/routing/gate.h"
#include "engine/routing/law.h"

namespace moe {

/// The auxiliary loss of Switch (Fedus et al. 2021, equations 4 to 6) of each MoE layer:
/// coefficient * E * sum over experts of f[e] * P[e], where P[e] is the mean over tokens of the
/// router's scores (softmax; those of a sigmoid divided by their sum over experts) and f[e] the
/// share of choices that fall on e. No gradient flows through f.
struct BalanceLossSpec {
  double coefficient = 0;  // 0: no such loss
  /// "first": each token's first choice, before drops (GShard, DeepSpeed). "choices": all k of
  /// them, before drops, over k (Megatron). "kept": those that found a place, over k.
  std::string count = "choices";
  /// false: f and P of each rank's own tokens, and the mean over ranks of the losses; it depends on
  /// how tokens are spread. true: f and P of all ranks' tokens, f by an all-reduce of the counts.
  bool over_all = false;
};

struct ModelSpec {
  std::string name = "gpt2_moe";
  int64_t vocab = 50257;
  int64_t layers = 12;
  int64_t hidden = 768;
  int64_t heads = 12;
  int64_t seq = 512;
  int64_t ffn = 0;               // 0: 4 * hidden
  int64_t batch_per_device = 1;  // rows of seq tokens per rank
  int64_t experts = 4;           // in all; divide over the ranks of an expert-parallel group
  int64_t ep = 0;                // ranks of an expert-parallel group; 0: all
  int64_t moe_every = 2;         // an MoE FFN in blocks b with b % moe_every == moe_every - 1
  std::string gate = "switch";
  int64_t k = 1;
  double capacity_factor = 1.25;  // <= 0: "none", every token fits
  BalanceLossSpec balance_loss;
  /// Coefficient of the mean over all tokens of logsumexp(router logits)^2, a layer (ST-MoE, Zoph
  /// et al. 2022, equation 5); 0: none.
  double z_loss = 0;
  /// Balancing without a loss (Wang et al. 2024): a bias an expert, added to its scores for the
  /// choice and not for the weights, goes up by this much after each step where the expert got
  /// fewer choices (of all ranks, before drops) than the mean, down where it got more; 0: none.
  double bias_rate = 0;
  bool fused_attention = true;  // one op, or score, softmax and context with [B,nh,S,S] in memory
  // Of activations, parameters and what goes over the wire; bf16: parameters stay f32.
  DType dtype = DType::kF32;

  int64_t ffn_size() const { return ffn > 0 ? ffn : 4 * hidden; }
  bool is_moe(int64_t block) const { return block % moe_every == moe_every - 1; }
  int64_t num_moe_layers() const;
  /// Number of an MoE block among the MoE layers, from 0.
  int64_t moe_layer(int64_t block) const { return block / moe_every; }
  int64_t tokens_per_rank() const { return batch_per_device * seq; }
  /// Expert-parallel groups are consecutive ranks; each holds all experts, so every expert has one
  /// resident per group.
  Group expert_group(int64_t num_ranks) const { return {ep > 0 ? ep : num_ranks, 1}; }
  /// The residents of one rank's experts, whose gradients are summed: {1, ...} where there is one.
  Group resident_group(int64_t num_ranks) const {
    const int64_t size = expert_group(num_ranks).size;
    return {num_ranks / size, size};
  }
};

struct Sgd {
  double lr = 0.1;
  double momentum = 0.9;
};
constexpr auto fields_of(const Sgd*) {
  return field_table<Sgd>(
      field("lr", &Sgd::lr, "learning rate").from(0, 1e38),
      field("momentum", &Sgd::momentum, "share of the last update that goes on").from(0, 1));
}

/// The decay, scaled by lr, is that of matrices and tables: of tensors with two axes or more, a
/// leading one over experts not counted; biases and LayerNorms have none.
struct Adamw {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
};
constexpr auto fields_of(const Adamw*) {
  constexpr double kBelowOne = 1 - 0x1p-24;  // in float, too
  return field_table<Adamw>(
      field("lr", &Adamw::lr, "learning rate").from(0, 1e38),
      field("beta1", &Adamw::beta1, "decay of the mean of gradients").from(0, kBelowOne),
      field("beta2", &Adamw::beta2, "decay of the mean of their squares").from(0, kBelowOne),
      field("eps", &Adamw::eps, "added to the root of that mean").from(1e-30, 1),
      field("weight_decay", &Adamw::weight_decay, "of matrices and tables, times lr").from(0, 1e6));
}

using OptimizerSpec = std::variant<Sgd, Adamw>;

/// How expert-gate details of a Lua gate reach the graph: what a Gate declares, as values.
struct GateSpec {
  std::string name;
  int64_t k = 1;
  int64_t columns = 1;
  int64_t capacity = 0;
  bool batch_scope = false;
  std::string scores = "softmax";  // | "sigmoid"
  std::string weight = "prob";     // | "renorm" | "one"
  Chooser chooser = Chooser::kToken;
};

/// Throws UserError naming "model.<field>", the value and what is allowed: sizes from 1 to a sane
/// bound, heads divide hidden, ep divides num_ranks and experts, factor finite.
void check(const ModelSpec& model, int64_t num_ranks);

/// From the built-in gates; a Lua gate's spec is made by its binding.
GateSpec gate_spec(const ModelSpec& model);
GateSpec gate_spec(const ModelSpec& model, const Gate& gate);

/// The gate that follows the law in place of the model's, with as many choices per token.
Gate law_gate(std::shared_ptr<const RoutingLaw> law, const ModelSpec& model, int64_t num_ranks);

/// The forward: embedding ... cross_entropy, then what model/routers.h adds. Tensors "ids",
/// "targets" are inputs. Parameter names and order are the reference model's: wte, wpe,
/// b<i>.ln1.w, b<i>.attn.qkv.w, ..., lnf.b; expert parameters hold this rank's experts [El, ...].
/// Loss scale = 1 / global tokens. Where a rank has every expert (one rank, or ep = 1) nothing is
/// exchanged, and rows stay [E,C,d]. Throws UserError naming "model.balance_loss", "model.z_loss"
/// or "model.bias_balance" and the gate where choices do not follow from a token's scores.
Graph build_forward(const ModelSpec& model, const GateSpec& gate, int64_t num_ranks);

/// The tensor of the cross entropy in a graph of build_forward (also after passes).
TensorId loss_of(const Graph& graph);

/// kReady: an all-reduce stands in program order where its last gradient is complete; kAfter: all
/// stand after the backward.
enum class ReducePlace : uint8_t { kAfter, kReady };
constexpr std::array<const char*, 2> names_of(ReducePlace) {
  return {"after", "ready"};
}
/// The names are those of the schedule's lanes.
enum class ReduceLane : uint8_t { kWithAllToAlls, kOwn };
constexpr std::array<const char*, 2> names_of(ReduceLane) {
  return {"comm", "comm_reduce"};
}

/// How gradients are all-reduced.
struct GradientSync {
  /// Gradients are packed into all-reduces of at least this many bytes, in the order in which they
  /// become complete, those of experts apart where they are summed over other ranks; 0: one
  /// all-reduce per gradient.
  Bytes bucket_bytes = 0;
  ReducePlace place = ReducePlace::kReady;
  ReduceLane lane = ReduceLane::kWithAllToAlls;
};
constexpr auto fields_of(const GradientSync*) {
  return field_table<GradientSync>(
      field("bucket_bytes", &GradientSync::bucket_bytes,
            "bytes that an all-reduce gathers; 0: one per gradient")
          .from(0, 1e12),
      field("place", &GradientSync::place,
            "after the backward, or when its gradients are complete"),
      field("lane", &GradientSync::lane, "the all-to-alls' lane or one of its own"));
}

/// autodiff, then the all-reduce of every gradient over the ranks that hold its parameter (of an
/// expert's over `residents`, ModelSpec::resident_group; nothing where that is one rank), then the
/// update of every parameter: SGD with momentum (states "<param>.v") or AdamW ("<param>.m", ".v").
void add_backward_and_update(Graph& graph, const OptimizerSpec& optimizer, const GradientSync& sync,
                             const Group& residents = {1, 1});

/// Names and full shapes of all parameters in the reference's order (expert tensors with all
/// experts, so [E, ...]); number t is the stream of the initialisation.
struct ParamInfo {
  std::string name;
  Shape shape;
  bool expert;
  enum class Init { kUniform, kOne, kZero } init;
};
std::vector<ParamInfo> parameters(const ModelSpec& model);
/// States that belong to no parameter, which begin at 0: b<i>.gate.bias [E] under bias balancing.
std::vector<ParamInfo> states(const ModelSpec& model);

/// Element i of parameter t: (int(r24(i, t)) - 2^23) * 2^-28, uniform in [-2^-5, 2^-5).
double reference_init(uint64_t element, uint64_t parameter);

}  // namespace moe
