// Functions that the built-in placement policies share. The policies themselves are not here: each
// has its own file, and builtin.cpp lists them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/placement/policy.h"

namespace moe {

/// Returns the inputs (rows of all sources) of each expert: [experts].
std::vector<int64_t> inputs_of_experts(const ExpertCounts& loads);
/// Returns the expert numbers in descending order of inputs, ties with the lower number first.
std::vector<int64_t> heaviest_first(const std::vector<int64_t>& inputs);
/// Returns the owners [experts]. Throws UserError "<who>: ..." when an expert has a
/// resident besides its owner.
std::vector<int64_t> single_owners(const Placement& placement, const char* who);
/// Returns the placement without shadows (copies for one step) and with Sharing::kLocal.
Placement without_shadows(const Placement& placement);
/// Returns without_shadows(placement) with copies of `experts` on all devices that do not hold
/// them; experts[q] takes shadow slot q.
Placement with_copies_everywhere(const Placement& placement, const std::vector<int64_t>& experts);
/// Throws UserError when the placement has no shadow slots.
void require_shadows(const Placement& placement, const char* who);

/// Returns whether it pays to change the residents from input.now to `next`: the heaviest device
/// then computes at least the fraction `keep` less and, if horizon > 0, the move pays within
/// `horizon` steps by the performance model (from input.rates). Both are options of eplb and swap.
bool pays(const PlaceInput& input, const Placement& next, const PolicyOptions& options,
          const char* who);
std::vector<OptionSpec> paying_options();

}  // namespace moe
