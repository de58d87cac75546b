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
  if (o.kernel == AttentionKernel::kFused) {
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
