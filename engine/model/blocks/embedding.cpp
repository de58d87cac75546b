#include "engine/model/blocks.h"
#include "engine/ops/ops.h"

namespace moe::blocks {

TensorId embedding(ModelBuilder& b, const In&, const Embedding& o) {
  using Init = ParamInfo::Init;
  b.begin_segment(Segment::kEmbed);
  const TensorId wte =
      o.ahead > 0 ? b.declared("wte")
                  : b.parameter("wte", {b.spec().vocab, o.hidden}, Init::kUniform, b.split(0));
  const std::string mtp = o.ahead > 0 ? fmt::format("mtp{}.", o.ahead) : "";
  const TensorId all = b.ahead(mtp + "embed.ahead", b.ids(), o.ahead, 0);
  TensorId wpe;
  if (o.positions && o.ahead == 0) {
    // Without cp a rank's own rows are a part of wpe.
    const Held held = b.spec().cp == 1 ? b.split(0) : Held();
    wpe = b.parameter("wpe", {b.spec().seq, o.hidden}, Init::kUniform, held);
  }
  const Attrs store = store_attr(b.spec().dtype);
  TensorId x;
  if (b.spec().ranks_per_share() == 1) {
    x = b.op("embedding", "embed", {all, wte, wpe}, store);
  } else {
    TensorId ids = b.own_parts(mtp + "embed.parts", all, 1);
    // A token has a row in one rank's part of the vocabulary.
    if (b.spec().tp > 1) ids = b.own_vocabulary("embed.ids", ids, wte);
    x = b.sum_to_own_rows("embed.sum", b.op("embedding", "embed", {ids, wte}, store));
    if (wpe.valid() && b.spec().cp > 1) wpe = b.own_parts("embed.wpe", wpe, 0, Axis::kTp);
    if (wpe.valid()) x = b.op("add_rows", "embed.positions", {x, wpe});
  }
  return scaled_sum(b, "embed.scale", x, o.scale, {});
}

TensorId scaled_sum(ModelBuilder& b, const std::string& name, TensorId x, double factor,
                    TensorId residual) {
  if (factor == 1) return residual.valid() ? b.op("add", name, {x, residual}) : x;
  return b.op("scale", name, {x, residual}, {{"factor", factor}});
}

}  // namespace moe::blocks
