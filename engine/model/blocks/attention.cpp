#include "engine/base/errors.h"
#include "engine/model/blocks.h"

namespace moe::blocks {

TensorId attention(ModelBuilder& b, const In& in, const Attention& o) {
  using Init = ParamInfo::Init;
  const int64_t d = b.width(in.x);
  if (d % o.heads != 0) {
    throw user_error("model.heads = {} does not divide model.hidden = {}", o.heads, d);
  }
  b.begin_segment(Segment::kAttn);
  const TensorId qkv_w = b.parameter("attn.qkv.w", {3 * d, d}, Init::kUniform, b.split(0, 3));
  const TensorId qkv_b = b.parameter("attn.qkv.b", {3 * d}, Init::kZero, b.split(0, 3));
  const TensorId out_w = b.parameter("attn.out.w", {d, d}, Init::kUniform, b.split(1));
  const TensorId out_b = b.parameter("attn.out.b", {d}, Init::kZero);
  const Attrs heads = {{"heads", b.own("heads", o.heads)}};
  const TensorId x = b.all_rows("attn.rows", in.x);
  const TensorId qkv = b.op("linear", "attn.qkv", {x, qkv_w, qkv_b});
  TensorId context;
  if (b.spec().cp > 1) {
    if (o.kernel == AttentionKernel::kUnfused) {
      throw user_error(
          "model.cp = {}: attention of separate ops (kernel = 'unfused') sees no keys of other "
          "ranks; use kernel = 'fused', or cp = 1",
          b.spec().cp);
    }
    const std::string each = std::to_string(b.width(qkv) / 3);
    const OpId parts = b.add("split", "attn.cut", {qkv},
                             {{"axis", int64_t{2}}, {"sizes", each + "," + each + "," + each}});
    const auto part = [&](size_t i) { return b.graph().out(parts, i); };
    context = b.attend(part(0), part(1), part(2), {}, heads);
  } else if (o.kernel == AttentionKernel::kFused) {
    context = b.op("attend", "attn.core", {qkv}, heads);
  } else {
    const TensorId score = b.op("attn_score", "attn.score", {qkv}, heads);
    const TensorId prob =
        b.op("attn_softmax", "attn.softmax", {score}, {{"head_dim", d / o.heads}});
    context = b.op("attn_context", "attn.context", {prob, qkv}, heads);
  }
  return b.summed_product("attn.out", context, out_w, out_b, in.residual);
}

}  // namespace moe::blocks
