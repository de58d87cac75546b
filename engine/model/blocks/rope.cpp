#include "engine/model/blocks.h"

namespace moe::blocks {

TensorId rope(ModelBuilder& b, const In&, const Rope& o) {
  const TensorId angles =
      b.op("rope_angles", o.name, {b.ids()}, ops::rope_angles_attrs(o.rotary, o.theta, o.scaling));
  return b.own_parts(o.name + ".parts", angles, 0);
}

}  // namespace moe::blocks
