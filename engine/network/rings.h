// Where the members of a collective's groups stand: how many share a node, and the ring of each.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/group.h"

namespace moe {

/// The devices that a collective runs on; devices_per_nic share a NIC.
struct NodeLayout {
  int64_t num_devices;
  int64_t devices_per_node;
  int64_t devices_per_nic;
};

/// The groups look the same from every node: from its i-th device as many members in the node and
/// outside, at the same places in their nodes; of a round, as many whom it sends to. Then one node
/// stands for all.
bool nodes_alike(const Group& group, int64_t devices_per_node, const Round& round = {});
/// Members of the device's group in its node, itself included; of those it sends to in `round`.
int64_t members_in_node(const NodeLayout& layout, const Group& group, int64_t device,
                        const Round& round = {});

/// From a device to the next of its group. NICs by their number in the node, -1 inside a node.
struct RingHop {
  int64_t from, to;
  int64_t nic_out, nic_in;
  int64_t rings;  // that take this way
};

/// Rings in rank order in every group at once. A ring crosses to the next node by one of the NICs
/// that serve the group's members in its node, ring c by number c modulo their count.
struct Rings {
  int64_t count = 1;          // a group
  std::vector<RingHop> hops;  // from devices [0, devices_seen)
};
/// rings: 0 for as many as NICs serve a group in a node, which is what NCCL builds. Requires: a
/// resolved group; devices_seen covers whole nodes.
Rings make_rings(const NodeLayout& layout, const Group& group, int64_t rings, int64_t devices_seen);

}  // namespace moe
