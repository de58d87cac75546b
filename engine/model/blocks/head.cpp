#include "engine/model/blocks.h"

namespace moe::blocks {

TensorId head(ModelBuilder& b, const In& in, const Head& o) {
  const int64_t vocab = b.spec().vocab;
  b.begin_segment(Segment::kHead);
  const TensorId w = o.tied
                         ? b.declared("wte")
                         : b.parameter("head.w", {vocab, b.width(in.x)}, ParamInfo::Init::kUniform);
  const TensorId logits =
      scaled_sum(b, "head.scale", b.op("linear", "head", {in.x, w}), o.scale, {});
  b.op("cross_entropy", "loss", {logits, b.targets()},
       {{"scale", 1.0 / b.spec().tokens_per_step(b.graph().num_ranks)}});
  return logits;
}

}  // namespace moe::blocks
