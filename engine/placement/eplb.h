// Replication and packing as EPLB does it (DeepSeek's expert-parallel load balancer, 2025), without
// its levels of nodes: how many residents each expert gets, and on which devices they live.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/placement/placement.h"

namespace moe {

/// Residents [experts] that add up to `total` or less: one each, then one more for the expert with
/// the most inputs a resident as long as there are any, never more than `devices`. Ties to the
/// lower number. Requires total >= experts.
std::vector<int64_t> replicate(const std::vector<int64_t>& inputs, int64_t total, int64_t devices);

/// The experts of `groups` groups of at most `room` each: residents in the order of their inputs,
/// each to the group with the fewest so far that has room and not the expert; a second resident for
/// which there is no such group is left out.
std::vector<std::vector<int64_t>> pack(const std::vector<int64_t>& inputs,
                                       const std::vector<int64_t>& residents, int64_t groups,
                                       int64_t room);

/// The groups on devices, so that few experts move: most in common first. Owners stay where they
/// can, else the first device that held the expert becomes it. Shared evenly.
Placement settle(const Placement& now, const std::vector<std::vector<int64_t>>& groups);

}  // namespace moe
