// Quotas: how many tokens each holder of an expert computes, whichever sources they come from. This
// is how methods that balance the exact load of a layer state their plans; a placement carries them
// as weights (Sharing::kWeighted).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/placement/placement.h"

namespace moe {

struct Quota {
  int64_t device = 0, tokens = 0;
  bool operator==(const Quota&) const = default;
};

/// Shares the tokens of an expert so that each holder computes its quota. quotas: of holders of the
/// expert, each device once; tokens add up to the expert's. A source first fills the quota of its
/// own device, so that these tokens do not travel. What is left goes in the order of sources to
/// what is left of the quotas, in their order, so that every quota is met to the token. Above
/// Placement::kMaxWeight tokens of a source for the expert the parts are rounded. Throws UserError
/// where the placement's bounds have no weights. Requires: loads of the placement's size.
void share_by_quota(Placement& placement, int64_t expert, const ExpertCounts& loads,
                    const std::vector<Quota>& quotas);

}  // namespace moe
