// A routing model in which tokens keep a class through all layers, as words do: a class goes to one
// expert in each layer, another one in each, and some of the choices are strays. A class shows only
// in several layers together, unlike in workload "markov", where the last layer says all. Made up
// to study popularity estimation (Lina, USENIX ATC 2023); no trace of a model.
#pragma once

#include <cstdint>

#include "engine/routing/routing_model.h"

namespace moe {

struct TokenClasses {
  int64_t classes = 64;
  double skew = 1;   // the i-th class is chosen in proportion to i^-skew
  double ratio = 4;  // of the most to the least popular expert, as classes are dealt out
  double stray = 0;  // share of choices that ignore the class: any expert, evenly
  double drift = 0;  // standard deviation of a class's log popularity, new in each step
  uint64_t seed = 1;
};

/// Classes are dealt out to experts whose popularity falls geometrically over `ratio`, in an order
/// that is new in each layer; the choices after a token's first are the experts after it. Throws
/// UserError naming "classes.<field>".
RoutingModel token_classes(const TokenClasses& spec);

}  // namespace moe
