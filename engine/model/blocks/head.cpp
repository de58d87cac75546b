#include "engine/model/blocks.h"

namespace moe::blocks {

TensorId head(ModelBuilder& b, const In& in, const Head& o) {
  const ModelSpec& spec = b.spec();
  b.begin_segment(Segment::kHead);
  TensorId w;
  if (o.tied || o.ahead > 0) {
    w = b.declared(o.tied ? "wte" : "head.w");
  } else {
    w = b.parameter("head.w", {spec.vocab, b.width(in.x)}, ParamInfo::Init::kUniform, b.split(0));
  }
  const std::string mtp = o.ahead > 0 ? fmt::format("mtp{}.", o.ahead) : "";
  const TensorId x = b.all_rows(mtp + "head.rows", in.x);
  const TensorId logits =
      scaled_sum(b, mtp + "head.scale", b.op("linear", mtp + "head", {x, w}), o.scale, {});
  const TensorId own =
      b.own_parts(mtp + "loss.parts", b.ahead(mtp + "loss.ahead", b.targets(), o.ahead, -1), 1);
  const double counted =
      static_cast<double>(spec.seq - o.ahead) / static_cast<double>(spec.seq);  // share of tokens
  Attrs attrs = {{"scale", o.factor / counted / spec.tokens_per_step(b.graph().num_ranks)}};
  if (o.ahead > 0) attrs["depth"] = o.ahead;
  if (spec.tp == 1) {
    b.op(o.ahead > 0 ? "mtp_loss" : "cross_entropy", mtp + "loss", {logits, own}, attrs);
    return logits;
  }
  const TensorId targets = b.own_vocabulary(mtp + "loss.targets", own, w);
  const TensorId sums = b.op("vocabulary_sums", mtp + "loss.own", {logits, targets});
  const TensorId all =
      b.op("gather_rows", mtp + "loss.sums", {sums}, b.over_tp({{"axis", int64_t{2}}}));
  attrs["copies"] = spec.tp;
  b.op(o.ahead > 0 ? "mtp_loss_split" : "cross_entropy_split", mtp + "loss", {logits, targets, all},
       attrs);
  return logits;
}

}  // namespace moe::blocks
