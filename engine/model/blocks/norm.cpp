#include "engine/base/errors.h"
#include "engine/model/blocks.h"

namespace moe::blocks {

TensorId layernorm(ModelBuilder& b, const In& in, const Layernorm& o) {
  const Shape shape = {b.width(in.x)};
  const TensorId gamma = b.parameter(o.name + ".w", shape, ParamInfo::Init::kOne);
  const TensorId beta = b.parameter(o.name + ".b", shape, ParamInfo::Init::kZero);
  return b.op("layernorm", o.name, {in.x, gamma, beta});
}

TensorId rmsnorm(ModelBuilder& b, const In& in, const Rmsnorm& o) {
  const int64_t width = b.width(in.x);
  if (width % o.heads != 0) {
    throw user_error("rmsnorm '{}': heads = {} does not divide the width {}", o.name, o.heads,
                     width);
  }
  const TensorId gamma = b.parameter(o.name + ".w", {width / o.heads}, ParamInfo::Init::kOne);
  return b.op("rmsnorm", o.name, {in.x, gamma}, {{"eps", o.eps}});
}

}  // namespace moe::blocks
