// A routing model in which tokens keep a class through all layers, as words do. In each layer the
// tokens of a class go to one expert, assigned per layer, but some choices ignore the class. Only
// the experts of several layers together reveal a class; in workload "markov" the last layer is
// enough. Invented to study popularity estimation (Lina, USENIX ATC 2023); not a trace of a model.
#pragma once

#include <cstdint>

#include "engine/routing/routing_model.h"

namespace moe {

struct TokenClasses {
  int64_t classes = 64;
  double skew = 1;   // the i-th class is chosen in proportion to i^-skew
  double ratio = 4;  // popularity of the most divided by that of the least popular expert
  double stray = 0;  // share of choices that ignore the class: any expert, uniformly
  double drift = 0;  // standard deviation of a class's log popularity, drawn in each step
  uint64_t seed = 1;
};

/// Returns a routing model that assigns classes to experts. The popularity of experts, which are in
/// a random order per layer, falls geometrically from 1 to 1 / ratio. The choices after a token's
/// first are the experts with the next numbers. Throws UserError naming "classes.<field>".
RoutingModel token_classes(const TokenClasses& spec);

}  // namespace moe
