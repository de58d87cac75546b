// Replication and packing as in EPLB (DeepSeek's expert-parallel load balancer, 2025,
// github.com/deepseek-ai/EPLB): the number of residents of each expert and their devices, among all
// devices or within nodes. Whether a move pays is decided by pays() in builtin.h.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/placement/placement.h"

namespace moe {

/// Returns the number of residents of each expert [experts], at most `total` in sum: one each, then
/// repeatedly one more for the expert with the most inputs per resident while that is above 0, but
/// at most `devices` per expert. Ties go to the lower expert. Requires: total >= experts.
std::vector<int64_t> replicate(const std::vector<int64_t>& inputs, int64_t total, int64_t devices);

/// Packs residents into `groups` groups of at most `room` residents, in descending order of inputs
/// per resident: each into the group with the fewest inputs so far that has room and does not hold
/// the expert yet. A resident for which there is no such group is left out.
std::vector<std::vector<int64_t>> pack(const std::vector<int64_t>& inputs,
                                       const std::vector<int64_t>& residents, int64_t groups,
                                       int64_t room);

struct NodeSlots {
  int64_t devices = 1, room = 1;  // residents per device
  int64_t nodes = 1, groups = 0;  // groups: 0, one per node
};
/// Returns the experts that live on each device by EPLB's hierarchical policy: groups of
/// consecutive experts are packed into nodes, equally many into each, and the experts of a node are
/// replicated and packed among its devices. Throws UserError where nodes do not divide the devices,
/// or groups do not fit nodes and experts. Unlike settle(), nodes stay where packing puts them.
std::vector<std::vector<int64_t>> pack_nodes(const std::vector<int64_t>& inputs,
                                             const NodeSlots& slots);

/// Assigns groups to devices so that few experts move: the group and device with the most experts
/// in common are paired first. An owner stays if its device keeps the expert; otherwise the first
/// device that keeps it, or else gets it, becomes owner. Experts with several residents are shared
/// evenly.
Placement settle(const Placement& now, const std::vector<std::vector<int64_t>>& groups);
/// The same for groups that have their devices: held[device].
Placement reside(const Placement& now, const std::vector<std::vector<int64_t>>& held);

}  // namespace moe
