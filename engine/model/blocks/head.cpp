#include "engine/model/blocks.h"

namespace moe::blocks {

TensorId head(ModelBuilder& b, const In& in, const Head& o) {
  const int64_t vocab = b.spec().vocab;
  b.begin_segment(Segment::kHead);
  const TensorId w =
      o.tied ? b.declared("wte")
             : b.parameter("head.w", {vocab, b.width(in.x)}, ParamInfo::Init::kUniform, b.split(0));
  const TensorId x = b.all_rows("head.rows", in.x);
  const TensorId logits = scaled_sum(b, "head.scale", b.op("linear", "head", {x, w}), o.scale, {});
  const TensorId own = b.own_parts("loss.parts", b.targets(), 1);
  Attrs attrs = {{"scale", 1.0 / b.spec().tokens_per_step(b.graph().num_ranks)}};
  if (b.spec().tp == 1) {
    b.op("cross_entropy", "loss", {logits, own}, attrs);
    return logits;
  }
  const TensorId targets = b.own_vocabulary("loss.targets", own, w);
  const TensorId sums = b.op("vocabulary_sums", "loss.own", {logits, targets});
  const TensorId all = b.op("gather_rows", "loss.sums", {sums}, b.over_tp({{"axis", int64_t{2}}}));
  attrs["copies"] = b.spec().tp;
  b.op("cross_entropy_split", "loss", {logits, targets, all}, attrs);
  return logits;
}

}  // namespace moe::blocks
