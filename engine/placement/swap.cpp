#include <algorithm>

#include "engine/placement/builtin.h"
#include "engine/placement/policies.h"

namespace moe {
namespace {

struct Swap {
  int64_t heavy = -1, light = -1;
  int64_t heaviest = 0;  // inputs of the heavier of the two devices after the swap
};

// Returns the swap of an expert of the heaviest device that leaves the fewest inputs on the heavier
// of the two devices; heavy = -1 if none leaves fewer than now. Ties go to the lower numbers.
Swap best_swap(const std::vector<int64_t>& owners, const std::vector<int64_t>& inputs,
               const std::vector<int64_t>& computed) {
  const auto most = std::max_element(computed.begin(), computed.end());
  const int64_t device = most - computed.begin();
  Swap best{.heaviest = *most};
  for (size_t a = 0; a < owners.size(); ++a) {
    if (owners[a] != device) continue;
    for (size_t b = 0; b < owners.size(); ++b) {
      const int64_t less = inputs[a] - inputs[b];
      if (owners[b] == device || less <= 0) continue;
      const int64_t heaviest =
          std::max(*most - less, computed[static_cast<size_t>(owners[b])] + less);
      if (heaviest < best.heaviest) best = {int64_t(a), int64_t(b), heaviest};
    }
  }
  return best;
}

Placement place_swap(const PlaceInput& input, const PolicyOptions& options) {
  std::vector<int64_t> owners = single_owners(input.now, "swap");
  const std::vector<int64_t> inputs = inputs_of_experts(input.loads);
  std::vector<int64_t> computed(static_cast<size_t>(input.now.bounds().devices));
  for (size_t e = 0; e < owners.size(); ++e) computed[static_cast<size_t>(owners[e])] += inputs[e];
  const Placement now = without_shadows(input.now);
  Placement next = now;
  const auto most = static_cast<int64_t>(options.at("swaps"));
  // The loop ends: every swap makes the heavier of two devices lighter, so no state occurs twice.
  for (int64_t i = 0; most == 0 || i < most; ++i) {
    const Swap swap = best_swap(owners, inputs, computed);
    if (swap.heavy < 0) break;
    auto& from = owners[static_cast<size_t>(swap.heavy)];
    auto& to = owners[static_cast<size_t>(swap.light)];
    const int64_t less =
        inputs[static_cast<size_t>(swap.heavy)] - inputs[static_cast<size_t>(swap.light)];
    computed[static_cast<size_t>(from)] -= less;
    computed[static_cast<size_t>(to)] += less;
    next.swap_owners(swap.heavy, swap.light);
    std::swap(from, to);
  }
  return pays(input, next, options, "swap") ? next : now;
}

}  // namespace

/// Like SmartMoE (Zhai et al., ATC 2023): swaps owners until devices compute about as much.
PlacementPolicy swap_policy() {
  std::vector<OptionSpec> options = paying_options();
  options.push_back(
      integer_option("swaps", 0, 0, 1e6, "the most swaps of two owners at once; 0: any number"));
  return {"swap",
          "SmartMoE: swaps owners, heaviest device first, until devices compute about equally much",
          place_swap, std::move(options), true};
}

}  // namespace moe
