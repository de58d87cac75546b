#include "engine/base/errors.h"
#include "engine/placement/builtin.h"
#include "engine/placement/policies.h"

namespace moe {

/// Copies the k heaviest experts to all devices in every step: top2 and top3 of Pro-Prophet, figure
/// 15.
PlacementPolicy top_k_policy() {
  const auto place = [](const PlaceInput& input, const PolicyOptions& options) {
    require_shadows(input.now, "top_k");
    const auto k = static_cast<int64_t>(options.at("k"));
    if (k > input.now.bounds().shadows) {
      throw user_error("top_k.k = {}, allowed: 1 to {}, the shadow slots of a device", k,
                       input.now.bounds().shadows);
    }
    std::vector<int64_t> experts = heaviest_first(inputs_of_experts(input.loads));
    // K is at most the number of experts, since shadows <= experts.
    experts.resize(static_cast<size_t>(k));
    return with_copies_everywhere(input.now, experts);
  };
  return {"top_k",
          "the heaviest experts are copied to all devices, whatever it costs",
          place,
          {integer_option("k", 2, 1, 1e6, "number of experts that are copied")},
          false,
          Reads::kNothing,
          {.now = true, .shadows = 3}};
}

}  // namespace moe
