#include "engine/base/errors.h"
#include "engine/model/blocks.h"

namespace moe::blocks {
namespace {

using Init = ParamInfo::Init;

/// Adds the norm and the rotary embedding of q or k, whose names begin with `name`.
TensorId prepared(ModelBuilder& b, const GroupedAttention& o, const std::string& name, TensorId x,
                  int64_t heads, TensorId angles) {
  const auto norm = [&] {
    if (o.qk_norm == QkNorm::kNone) return;
    const bool row = o.qk_norm == QkNorm::kRow;
    if (row) x = b.all_columns(name + "_all", x);
    x = rmsnorm(b, {x}, {.name = name + "_norm", .eps = o.eps, .heads = row ? 1 : heads});
    if (row) x = b.own_parts(name + "_own", x, 2, Axis::kTp, Axis::kTp);
  };
  if (!o.norm_after_rope) norm();
  if (angles.valid()) {
    x = b.op("rope", name + "_rope", {x, angles},
             {{"head_dim", b.width(x) / heads}, {"form", std::string(name_of(o.rope))}});
  }
  if (o.norm_after_rope) norm();
  return x;
}

/// Returns the number of neighbouring ranks of tp that hold the same head of k and v: above 1 where
/// there are fewer than ranks.
int64_t ranks_per_head(const ModelBuilder& b, int64_t kv_heads) {
  const int64_t tp = b.spec().tp;
  if (kv_heads >= tp) return 1;
  if (tp % kv_heads != 0) {
    throw user_error("model.tp = {}: allowed with {} kv_heads: divisors and multiples of them", tp,
                     kv_heads);
  }
  return tp / kv_heads;
}

}  // namespace

TensorId grouped_attention(ModelBuilder& b, const In& in, const GroupedAttention& o) {
  const int64_t d = b.width(in.x), kv_heads = o.kv_heads > 0 ? o.kv_heads : o.heads;
  if (o.heads % kv_heads != 0 || (o.head_dim == 0 && d % o.heads != 0)) {
    throw user_error(
        "grouped_attention: {} heads with kv_heads = {} on a width of {}: kv_heads must divide "
        "heads, and heads the width unless head_dim is given",
        o.heads, kv_heads, d);
  }
  const int64_t head_dim = o.head_dim > 0 ? o.head_dim : d / o.heads;
  b.begin_segment(Segment::kAttn);
  const int64_t value = o.value > 0 ? o.value : head_dim;
  const int64_t heads = b.own("heads", o.heads), same = ranks_per_head(b, kv_heads);
  const int64_t own_kv_heads = same > 1 ? 1 : b.own("kv_heads", kv_heads);
  if (same > 1 && o.qk_norm == QkNorm::kRow) {
    throw user_error(
        "model.tp = {}: grouped_attention with qk_norm = 'row' normalises all heads of a row, of "
        "which ranks must have their own, but there are {} kv_heads; use a divisor of them",
        b.spec().tp, kv_heads);
  }
  const TensorId x = b.all_rows("attn.rows", in.x);
  const auto project = [&](const std::string& name, int64_t columns, bool bias, int64_t copies) {
    const Held held = b.split(0, 1, static_cast<int8_t>(copies));
    std::vector<TensorId> inputs = {x,
                                    b.parameter(name + ".w", {columns, d}, Init::kUniform, held)};
    if (bias) inputs.push_back(b.parameter(name + ".b", {columns}, Init::kZero, held));
    return b.op("linear", name, std::move(inputs));
  };
  TensorId q = project("attn.q", o.heads * head_dim, o.bias, 1);
  TensorId k = project("attn.k", kv_heads * head_dim, o.bias, same);
  const TensorId v = project("attn.v", kv_heads * value, o.bias, same);
  q = prepared(b, o, "attn.q", q, heads, in.angles);
  k = prepared(b, o, "attn.k", k, own_kv_heads, in.angles);
  TensorId sinks;
  if (o.sinks) sinks = b.parameter("attn.sinks", {o.heads}, Init::kZero, b.split(0));
  Attrs attrs = {{"heads", heads}, {"kv_heads", own_kv_heads}};
  if (o.scale > 0) attrs["scale"] = o.scale;
  if (o.window > 0) attrs["window"] = o.window;
  TensorId context = b.attend(q, k, v, sinks, attrs);
  context = scaled_sum(b, "attn.v_scale", context, o.value_scale, {});
  if (o.gated) {
    const TensorId logits = project("attn.gate", o.heads * value, false, 1);
    context = b.op("mul", "attn.gated", {context, b.op("sigmoid", "attn.gate_on", {logits})});
  }
  const TensorId w = b.parameter("attn.out.w", {d, o.heads * value}, Init::kUniform, b.split(1));
  const TensorId bias = o.out_bias ? b.parameter("attn.out.b", {d}, Init::kZero) : TensorId();
  if (o.residual_scale == 1) return b.summed_product("attn.out", context, w, bias, in.residual);
  const TensorId y = b.summed_product("attn.out", context, w, bias, {});
  return scaled_sum(b, "attn.scale", y, o.residual_scale, in.residual);
}

}  // namespace moe::blocks
