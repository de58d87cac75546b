#include "engine/model/blocks.h"

namespace moe::blocks {

TensorId rope(ModelBuilder& b, const In&, const Rope& o) {
  return b.op("rope_angles", o.name, {b.ids()},
              ops::rope_angles_attrs(o.rotary, o.theta, o.scaling));
}

}  // namespace moe::blocks
