// UltraEP's plan (Wei et al. 2026, arXiv 2606.04101; blog and placement_quota_gpu.cu of the public
// code, github.com/Dots-Infra/UltraEP): copies of experts and the tokens that each of them
// computes, from the exact loads of one layer and micro-batch.
//
// For a threshold, the most tokens that a device may compute, devices above it give tokens away:
// the heaviest device first, of its experts the heaviest first, each time to a device that has
// room, a free slot and does not hold the expert; as many as are to be given away, as there is room
// for, and as the expert has left. The threshold fails if a device cannot get rid of its tokens.
// Tried first are the mean load and `slack` of it more, and two thresholds above that by a
// hundredth of the heaviest device's load; in these a copy must get at least an even share of what
// is to be given away among the devices that could take it, or the next expert is tried. If all
// fail, the least threshold that succeeds without this condition is searched for from the mean on.
//
// Chosen here: of the devices that could take all, the one with the least room takes it, and only
// if there is none the one with the most room. The public code always takes the one with the most
// room, as `best_fit = false` does, which needs more copies. The first threshold is rounded down,
// so that it is kept to the token (there rounded up). The search halves the interval (there divided
// by five). Ties go to the lower number. Sources fill quotas in order (quota.h), while the public
// code shares by proportion on each source, which can miss a quota by some tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/expert_counts.h"

namespace moe {

/// Tokens of an expert that a device other than its owner computes.
struct Copied {
  int64_t expert = 0, device = 0, tokens = 0;
  bool operator==(const Copied&) const = default;
};

struct UltraEpPlan {
  std::vector<Copied> copies;  // in the order of the search
  int64_t threshold = 0;       // no device computes more tokens
};

struct UltraEpOptions {
  double slack = 0.01;     // as above, >= 0; the default of the public code
  int64_t min_tokens = 1;  // the fewest tokens that a copy may get
  bool best_fit = true;    // as above
};

/// Makes the plan. owners: [experts], devices from 0; slots: for copies, per device. Without a slot
/// or an overload there are no copies. Requires: as many sources of `loads` as devices.
UltraEpPlan plan_ultraep(const ExpertCounts& loads, std::span<const int64_t> owners, int64_t slots,
                         const UltraEpOptions& options);

}  // namespace moe
