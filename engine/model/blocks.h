// The built-in blocks of models, one file each in blocks/. A block declares its parameters and adds
// its ops; architectures are made of blocks in Lua (scripts/moe/models). Names of parameters and
// ops are those after "->"; in a block of the model they have its prefix "b<i>.". d is the width of
// x [B,S,d]. kName and kDoc of the options are what recipes call the block and read about it;
// kTensors are the tensors of In that it reads besides x.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/base/field.h"
#include "engine/model/builder.h"
#include "engine/ops/rope_frequencies.h"

namespace moe::blocks {

/// What a block reads. Not valid: absent.
struct In {
  TensorId x;
  TensorId residual = {};  // is added to the block's output
  TensorId angles = {};    // of rotary embeddings, as rope() returns them
};
constexpr std::array<const char*, 0> kNone = {};
constexpr std::array<const char*, 1> kResidual = {"residual"};
constexpr std::array<const char*, 2> kResidualAndAngles = {"residual", "angles"};

struct Embedding {
  static constexpr const char* kName = "embedding";
  static constexpr const char* kDoc = "the embedding of the ids; there is no x";
  static constexpr auto kTensors = kNone;
  int64_t hidden = 0;
  bool positions = true;
  double scale = 1;
  int64_t ahead = 0;
};
constexpr auto fields_of(const Embedding*) {
  return field_table<Embedding>(
      field("hidden", &Embedding::hidden, "width of the model").from(1, 1 << 20).must(),
      field("positions", &Embedding::positions, "adds a learned vector per position"),
      field("scale", &Embedding::scale, "factor of the output"),
      field("ahead", &Embedding::ahead,
            "of an MTP layer: of the ids so many places further on, by the matrix of the embedding "
            "before, and without positions; beyond the end of a sequence of id 0")
          .from(0, 4096));
}
/// wte [V,d], wpe [S,d] with positions -> embed, embed.scale; neither is declared with ahead.
TensorId embedding(ModelBuilder& b, const In& in, const Embedding& o);

struct Layernorm {
  static constexpr const char* kName = "layernorm";
  static constexpr const char* kDoc = "LayerNorm with weight and bias";
  static constexpr auto kTensors = kNone;
  std::string name;
};
constexpr auto fields_of(const Layernorm*) {
  return field_table<Layernorm>(field("name", &Layernorm::name, "name of the op").must());
}
/// <name>.w [d], <name>.b [d] -> <name>.
TensorId layernorm(ModelBuilder& b, const In& in, const Layernorm& o);

struct Rmsnorm {
  static constexpr const char* kName = "rmsnorm";
  static constexpr const char* kDoc = "RMSNorm of rows, or of the heads in a row";
  static constexpr auto kTensors = kNone;
  std::string name;
  double eps = 1e-6;
  int64_t heads = 1;
};
constexpr auto fields_of(const Rmsnorm*) {
  return field_table<Rmsnorm>(
      field("name", &Rmsnorm::name, "name of the op").must(),
      field("eps", &Rmsnorm::eps, "added to the mean of squares").from(0, 1),
      field("heads", &Rmsnorm::heads, "number of heads in a row, each normalised by itself")
          .from(1, 1e5));
}
/// <name>.w [d / heads] -> <name>.
TensorId rmsnorm(ModelBuilder& b, const In& in, const Rmsnorm& o);

struct Rope {
  static constexpr const char* kName = "rope";
  static constexpr const char* kDoc =
      "the angles of rotary embeddings, which all blocks share; there is no x";
  static constexpr auto kTensors = kNone;
  int64_t rotary = 0;
  double theta = 10000;
  std::string name = "rope";
  ops::RopeScaling scaling;
};
constexpr auto fields_of(const Rope*) {
  return field_table<Rope>(
      field("rotary", &Rope::rotary, "number of columns of a head that turn").from(2, 4096).must(),
      field("theta", &Rope::theta, "base of the frequencies").from(1, 1e12),
      field("name", &Rope::name, "name of the op"), inlined("", &Rope::scaling));
}
/// -> <name>: angles [S,rotary].
TensorId rope(ModelBuilder& b, const In& in, const Rope& o);

/// Whether attention is one kernel, or separate ops for scores, softmax and context, in which case
/// scores [batch, heads, seq, seq] are stored.
enum class AttentionKernel : uint8_t { kFused, kUnfused };
constexpr std::array<const char*, 2> names_of(AttentionKernel) {
  return {"fused", "unfused"};
}
struct Attention {
  static constexpr const char* kName = "attention";
  static constexpr const char* kDoc =
      "causal multi-head attention with one projection for q, k and v, with biases";
  static constexpr auto kTensors = kResidual;
  int64_t heads = 0;
  AttentionKernel kernel = AttentionKernel::kFused;
};
constexpr auto fields_of(const Attention*) {
  return field_table<Attention>(
      field("heads", &Attention::heads, "number of heads; must divide the width of x")
          .from(1, 1e5)
          .must(),
      field("kernel", &Attention::kernel,
            "fused: one kernel; unfused: scores, softmax and context are written to memory"));
}
/// attn.qkv.w [3d,d], attn.qkv.b, attn.out.w [d,d], attn.out.b -> attn.qkv, attn.core (or
/// attn.score, attn.softmax, attn.context), attn.out.
TensorId attention(ModelBuilder& b, const In& in, const Attention& o);

/// Which pairs of a head's columns turn together: column i and i + rotary / 2, or 2i and 2i + 1.
enum class RopeForm : uint8_t { kHalves, kInterleaved };
constexpr std::array<const char*, 2> names_of(RopeForm) {
  return {"halves", "interleaved"};
}
/// RMSNorms of q and k: none, one per head, or one over all heads of a row.
enum class QkNorm : uint8_t { kNone, kHead, kRow };
constexpr std::array<const char*, 3> names_of(QkNorm) {
  return {"none", "head", "row"};
}
struct GroupedAttention {
  static constexpr const char* kName = "grouped_attention";
  static constexpr const char* kDoc =
      "causal attention in which groups of query heads share a head of k and v";
  static constexpr auto kTensors = kResidualAndAngles;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool bias = false, out_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool norm_after_rope = false;
  double eps = 1e-6;
  RopeForm rope = RopeForm::kHalves;
  int64_t window = 0;
  bool sinks = false;
  double scale = 0;
  double residual_scale = 1;
  int64_t value = 0;
  double value_scale = 1;
  bool gated = false;
};
constexpr auto fields_of(const GroupedAttention*) {
  using O = GroupedAttention;
  return field_table<O>(
      field("heads", &O::heads, "number of query heads").from(1, 1e5).must(),
      field("kv_heads", &O::kv_heads,
            "number of heads of k and v; must divide heads; 0 means as many as heads")
          .from(0, 1e5),
      field("head_dim", &O::head_dim, "width of a head; 0 means the width of x / heads")
          .from(0, 4096),
      field("bias", &O::bias, "whether the projections of q, k and v have biases"),
      field("out_bias", &O::out_bias, "whether the output projection has a bias"),
      field("qk_norm", &O::qk_norm,
            "RMSNorm of q and k: of each head with one weight for all, or of the row of all heads"),
      field("norm_after_rope", &O::norm_after_rope, "whether q and k turn before their norm"),
      field("eps", &O::eps, "eps of the norms").from(0, 1),
      field("rope", &O::rope,
            "the columns that turn together: i and i + rotary / 2 (halves), or neighbours"),
      field("window", &O::window, "number of last tokens that a token sees; 0 means all")
          .from(0, 1 << 24),
      field("sinks", &O::sinks, "whether each head has a learned logit that no token gets"),
      field("scale", &O::scale, "factor of the scores; 0 means 1 / sqrt(head_dim)").from(0, 1e6),
      field("residual_scale", &O::residual_scale, "factor of what is added to the residual"),
      field("value", &O::value, "width of a head of v; 0 means head_dim").from(0, 4096),
      field("value_scale", &O::value_scale, "factor of v"),
      field("gated", &O::gated,
            "whether the heads' outputs are multiplied by sigmoid(x wg), one number per column"));
}
/// attn.q.w [heads*head_dim,d], attn.k.w [kv_heads*head_dim,d], attn.v.w [kv_heads*value,d], their
/// biases, attn.q_norm.w, attn.k_norm.w, attn.sinks [heads], attn.gate.w [heads*value,d] of gated,
/// attn.out.w [d,heads*value], attn.out.b -> attn.q, attn.k, attn.v, attn.q_norm, attn.k_norm,
/// attn.q_rope, attn.k_rope, attn.core, attn.v_scale, attn.gate, attn.gate_on, attn.gated and
/// attn.out.
TensorId grouped_attention(ModelBuilder& b, const In& in, const GroupedAttention& o);

struct LatentAttention {
  static constexpr const char* kName = "latent_attention";
  static constexpr const char* kDoc =
      "causal attention with low ranks for q and for k and v, of DeepSeek-V2 (arXiv 2405.04434)";
  static constexpr auto kTensors = kResidualAndAngles;
  int64_t heads = 0, q_rank = 0, kv_rank = 0;
  int64_t nope = 0, value = 0;
  double eps = 1e-6;
  RopeForm rope = RopeForm::kInterleaved;
  double scale = 0;
};
constexpr auto fields_of(const LatentAttention*) {
  using O = LatentAttention;
  return field_table<O>(
      field("heads", &O::heads, "number of heads").from(1, 1e5).must(),
      field("q_rank", &O::q_rank, "rank of the projection of q; 0 means one full matrix")
          .from(0, 1 << 20),
      field("kv_rank", &O::kv_rank, "rank of the projection of k and v").from(1, 1 << 20).must(),
      field("nope", &O::nope,
            "columns of a head of q and k that do not turn; those of the angles follow them")
          .from(1, 4096)
          .must(),
      field("value", &O::value, "width of a head of v").from(1, 4096).must(),
      field("eps", &O::eps, "eps of the norms").from(0, 1),
      field("rope", &O::rope,
            "the columns that turn together: i and i + rotary / 2 (halves), or neighbours"),
      field("scale", &O::scale, "factor of the scores; 0 means 1 / sqrt(width of a head of q)")
          .from(0, 1e6));
}
/// attn.q_a.w [q_rank,d], attn.q_a_norm.w, attn.q_b.w [heads*(nope+rotary),q_rank] (or attn.q.w),
/// attn.kv_a.w [kv_rank+rotary,d], attn.kv_a_norm.w, attn.kv_b.w [heads*(nope+value),kv_rank],
/// attn.out.w [d,heads*value] -> ops of the same names, attn.q_rope, attn.k_rope, attn.core.
TensorId latent_attention(ModelBuilder& b, const In& in, const LatentAttention& o);

/// The form of a feed-forward: GELU(fc1(x)), or with fc1 of twice the width, whose first half is
/// the gate and whose second half is the value, silu(gate) * value (op silu_mul).
enum class Activation : uint8_t { kGelu, kSiluMul };
constexpr std::array<const char*, 2> names_of(Activation) {
  return {"gelu", "silu_mul"};
}
struct Form {
  int64_t ffn = 0;
  Activation form = Activation::kGelu;
  bool bias = true;
  double limit = 0, alpha = 1, offset = 0;

  /// Rows of fc1's matrix.
  int64_t fc1_rows() const { return form == Activation::kSiluMul ? 2 * ffn : ffn; }
};
constexpr auto fields_of(const Form*) {
  return field_table<Form>(
      field("ffn", &Form::ffn, "inner width").from(1, 1 << 24).must(),
      field("form", &Form::form,
            "fc2(GELU(fc1(x))), or fc2(silu(gate) * value), where fc1 gives gate and value"),
      field("bias", &Form::bias, "whether fc1 and fc2 have biases"),
      field("limit", &Form::limit, "of silu_mul: bound of gate and value; 0 means none")
          .from(0, 1e6),
      field("alpha", &Form::alpha, "of silu_mul: factor of the gate in its sigmoid").from(0, 1e6),
      field("offset", &Form::offset, "of silu_mul: added to the value").from(-1e6, 1e6));
}
/// Adds fc1 and the activation, named <name>.fc1 and <name>.act (<name>.gelu); b1: not valid
/// without biases. `linear` is the kind of fc1.
TensorId activated(ModelBuilder& b, const Form& o, const std::string& name, const char* linear,
                   TensorId x, TensorId w1, TensorId b1, const Attrs& attrs);

struct FeedForward {
  static constexpr const char* kName = "feed_forward";
  static constexpr const char* kDoc = "a dense feed-forward, or a shared expert";
  static constexpr auto kTensors = kResidual;
  Form form;
  std::string name;
  bool gated = false;
  double residual_scale = 1;
};
constexpr auto fields_of(const FeedForward*) {
  using O = FeedForward;
  return field_table<O>(
      inlined("", &O::form),
      field("name", &O::name,
            "name in front of its parameters and ops; default: mlp, for ops only"),
      field("gated", &O::gated,
            "whether the output is multiplied by sigmoid(x wg), one number per token"),
      field("residual_scale", &O::residual_scale, "factor of what is added to the residual"));
}
/// fc1.w [ffn,d], fc1.b, fc2.w [d,ffn], fc2.b, gate.w [1,d] with gated -> mlp.fc1, mlp.gelu or
/// mlp.act, mlp.fc2.
TensorId feed_forward(ModelBuilder& b, const In& in, const FeedForward& o);

/// To what the bias of a choice is added.
enum class BiasOn : uint8_t { kScores, kLogits };
constexpr std::array<const char*, 2> names_of(BiasOn) {
  return {"scores", "logits"};
}
struct Experts {
  static constexpr const char* kName = "experts";
  static constexpr const char* kDoc = "the MoE layer: router, gate, exchanges and routed experts";
  static constexpr auto kTensors = kResidual;
  Form form;
  bool router_bias = false;
  bool choice_bias = false;
  BiasOn bias_on = BiasOn::kScores;
  double residual_scale = 1;
};
constexpr auto fields_of(const Experts*) {
  using O = Experts;
  return field_table<O>(
      inlined("", &O::form),
      field("router_bias", &O::router_bias, "whether the router's logits have a bias"),
      field("choice_bias", &O::choice_bias,
            "whether each expert has a bias that is added to its scores for the choice only; it is "
            "read from checkpoints, and changes only where the model balances by biases"),
      field("bias_on", &O::bias_on,
            "whether this bias is added to the scores, or to the logits, whose order then decides"),
      field("residual_scale", &O::residual_scale, "factor of what is added to the residual"));
}
/// gate.w [E,d], gate.b [E] with router_bias, ex.fc1.w [E,ffn,d], ex.fc1.b, ex.fc2.w [E,d,ffn],
/// ex.fc2.b, the state gate.bias [E] with choice_bias or where the model balances by biases ->
/// moe.logits, moe.gate, moe.dispatch, moe.a2a_1, moe.fc1, moe.gelu or moe.act, moe.fc2, moe.a2a_2,
/// moe.combine.
TensorId experts(ModelBuilder& b, const In& in, const Experts& o);

struct Head {
  static constexpr const char* kName = "head";
  static constexpr const char* kDoc = "logits and the loss; returns the logits";
  static constexpr auto kTensors = kNone;
  bool tied = true;
  double scale = 1;
  int64_t ahead = 0;
  double factor = 1;
};
constexpr auto fields_of(const Head*) {
  return field_table<Head>(
      field("tied", &Head::tied, "the matrix of the embedding is that of the head"),
      field("scale", &Head::scale, "factor of the logits"),
      field("ahead", &Head::ahead,
            "of an MTP layer, by the matrix of the head before: how many tokens further on it "
            "predicts than that")
          .from(0, 4096),
      field("factor", &Head::factor, "of an MTP layer: factor of its loss").from(0, 1e6));
}
/// The loss is the sum of the cross entropy divided by the tokens of all ranks: head.w [V,d] unless
/// tied -> head, head.scale, loss. That of MTP layer k = ahead, mtp<k>.loss (op mtp_loss), is
/// factor times the mean over the tokens that have a target: the last k of a sequence have none.
TensorId head(ModelBuilder& b, const In& in, const Head& o);

/// Returns factor * x + residual (either may be absent: factor 1, residual not valid).
TensorId scaled_sum(ModelBuilder& b, const std::string& name, TensorId x, double factor,
                    TensorId residual);

}  // namespace moe::blocks
