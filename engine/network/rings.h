// How the groups of a collective lie in the nodes: how many members share a node, and over which
// NICs the rings of a group run. Times are in closed_form.h and contention.h.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/group.h"

namespace moe {

/// The devices that a collective runs on. devices_per_nic devices share a NIC.
struct NodeLayout {
  int64_t num_devices;
  int64_t devices_per_node;
  int64_t devices_per_nic;
};

/// Returns whether the groups look the same from every node: the i-th device of each node has as
/// many members of its group inside and outside its node, at the same places in their nodes; in a
/// round, also as many members to send to. If so, it is enough to compute one node's transfers.
bool nodes_alike(const Group& group, int64_t devices_per_node, const Round& round = {});
/// Returns how many of the members to which `device` sends in `round` are in the device's own node.
/// The device itself counts if it is one of the members to which it sends.
int64_t members_in_node(const NodeLayout& layout, const Group& group, int64_t device,
                        const Round& round = {});

/// A hop of a ring: from a device to the next device of its group. NICs are given by their number
/// in the node; -1 for a hop inside a node.
struct RingHop {
  int64_t from, to;
  int64_t nic_out, nic_in;
  int64_t rings;  // number of rings that use this hop
};

/// Rings in rank order, in every group at once. Each ring crosses to the next node by one of the
/// NICs that serve the group's members in its node: ring c uses number c modulo the number of these
/// NICs.
struct Rings {
  int64_t count = 1;          // rings per group
  std::vector<RingHop> hops;  // hops from the devices [0, devices_seen)
};
/// Returns `rings` rings per group; 0 means as many as there are NICs that serve a group in a node,
/// which is what NCCL builds. Requires: a resolved group, and devices_seen in whole nodes.
Rings make_rings(const NodeLayout& layout, const Group& group, int64_t rings, int64_t devices_seen);

}  // namespace moe
