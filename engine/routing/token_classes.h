// The workload token_classes: tokens keep a class through all layers, as words do. In a layer the
// tokens of a class go to one expert, assigned per layer, but some choices ignore the class. Only
// the experts of several layers together reveal a class; in workload "markov" the last layer is
// enough. Invented to study popularity estimation (Lina, USENIX ATC 2023); not a trace of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/option.h"
#include "engine/routing/routing_model.h"

namespace moe {

constexpr const char* kTokenClasses = "token_classes";
/// Returns the options of the workload: the fields of TokenClasses except the seed.
std::vector<OptionSpec> token_class_options();

struct TokenClasses {
  int64_t classes = 64;
  double skew = 1, ratio = 4, stray = 0, drift = 0;
  uint64_t seed = 1;
};

/// Returns a routing model that assigns classes to experts. The popularity of experts, which are in
/// a random order per layer, falls geometrically from 1 to 1 / ratio. The choices after a token's
/// first are the experts with the next numbers. The model has no name. Requires: a spec within the
/// ranges of token_class_options().
RoutingModel token_classes(const TokenClasses& spec);

}  // namespace moe
