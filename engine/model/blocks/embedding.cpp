#include "engine/model/blocks.h"
#include "engine/ops/ops.h"

namespace moe::blocks {

TensorId embedding(ModelBuilder& b, const In&, const Embedding& o) {
  using Init = ParamInfo::Init;
  b.begin_segment(Segment::kEmbed);
  std::vector<TensorId> inputs = {b.ids(),
                                  b.parameter("wte", {b.spec().vocab, o.hidden}, Init::kUniform)};
  if (o.positions) {
    inputs.push_back(b.parameter("wpe", {b.spec().seq, o.hidden}, Init::kUniform));
  }
  const TensorId x = b.op("embedding", "embed", std::move(inputs), store_attr(b.spec().dtype));
  return scaled_sum(b, "embed.scale", x, o.scale, {});
}

TensorId scaled_sum(ModelBuilder& b, const std::string& name, TensorId x, double factor,
                    TensorId residual) {
  if (factor == 1) return residual.valid() ? b.op("add", name, {x, residual}) : x;
  return b.op("scale", name, {x, residual}, {{"factor", factor}});
}

}  // namespace moe::blocks
