#include "engine/base/errors.h"
#include "engine/model/blocks.h"

namespace moe::blocks {
namespace {

using Init = ParamInfo::Init;

TensorId project(ModelBuilder& b, const std::string& name, TensorId x, int64_t columns,
                 Held held = {}) {
  const TensorId w = b.parameter(name + ".w", {columns, b.width(x)}, Init::kUniform, held);
  return b.op("linear", name, {x, w});
}

}  // namespace

TensorId latent_attention(ModelBuilder& b, const In& in, const LatentAttention& o) {
  if (!in.angles.valid()) throw UserError("latent_attention: give angles, as b:rope makes them");
  const int64_t d = b.width(in.x), rotary = b.width(in.angles), head = o.nope + rotary;
  const auto turned = [&](const std::string& name, TensorId x, int64_t head_dim, int64_t first) {
    Attrs attrs = {{"head_dim", head_dim}, {"form", std::string(name_of(o.rope))}};
    if (first > 0) attrs["first"] = first;
    return b.op("rope", name, {x, in.angles}, attrs);
  };
  b.begin_segment(Segment::kAttn);
  // The ranks of a group over tp have the heads between them. What all heads share, of low rank, is
  // computed of own rows, and then travels.
  const int64_t own_heads = b.own("heads", o.heads);
  TensorId q = in.x;
  if (o.q_rank > 0) {
    q = project(b, "attn.q_a", q, o.q_rank);
    q = rmsnorm(b, {q}, {.name = "attn.q_a_norm", .eps = o.eps});
  }
  q = b.all_rows("attn.q_rows", q);
  q = project(b, o.q_rank > 0 ? "attn.q_b" : "attn.q", q, o.heads * head, b.split(0));
  q = turned("attn.q_rope", q, head, o.nope);
  const TensorId both = project(b, "attn.kv_a", in.x, o.kv_rank + rotary);
  const OpId cut =
      b.add("split_heads", "attn.kv_cut", {both}, {{"heads", int64_t{1}}, {"first", o.kv_rank}});
  const TensorId low = b.all_rows(
      "attn.kv_rows", rmsnorm(b, {b.graph().out(cut)}, {.name = "attn.kv_a_norm", .eps = o.eps}));
  const TensorId shared = b.all_rows("attn.k_rows", b.graph().out(cut, 1));
  const TensorId k_rope = turned("attn.k_rope", shared, rotary, 0);
  const TensorId kv = project(b, "attn.kv_b", low, o.heads * (o.nope + o.value), b.split(0));
  const OpId heads =
      b.add("split_heads", "attn.heads_cut", {kv}, {{"heads", own_heads}, {"first", o.nope}});
  const TensorId k = b.op("join_heads", "attn.k", {b.graph().out(heads), k_rope},
                          {{"heads", own_heads}, {"shared", int64_t{1}}});
  Attrs attrs = {{"heads", own_heads}, {"kv_heads", own_heads}};
  if (o.scale > 0) attrs["scale"] = o.scale;
  const TensorId context = b.attend(q, k, b.graph().out(heads, 1), {}, attrs);
  const TensorId w = b.parameter("attn.out.w", {d, o.heads * o.value}, Init::kUniform, b.split(1));
  return b.summed_product("attn.out", context, w, {}, in.residual);
}

}  // namespace moe::blocks
