#include "engine/network/rings.h"

#include <algorithm>
#include <numeric>

namespace moe {
namespace {

/// The places [first, last] in a device's group whose ranks are in the device's node.
struct Places {
  int64_t first, last;
};

Places places_in_node(const NodeLayout& layout, const Group& group, int64_t device) {
  const int64_t node = device / layout.devices_per_node * layout.devices_per_node;
  const int64_t before = (device - node) / group.stride;
  const int64_t after = (node + layout.devices_per_node - 1 - device) / group.stride;
  const int64_t place = group.place(device);
  return {std::max<int64_t>(0, place - before), std::min(group.size - 1, place + after)};
}

std::vector<int64_t> nics_of(const NodeLayout& layout, const Group& group, int64_t device) {
  const Places in_node = places_in_node(layout, group, device);
  std::vector<int64_t> nics;
  for (int64_t place = in_node.first; place <= in_node.last; ++place) {
    const int64_t local = group.member(device, place) % layout.devices_per_node;
    const int64_t nic = local / layout.devices_per_nic;
    if (nics.empty() || nics.back() != nic) nics.push_back(nic);
  }
  return nics;
}

}  // namespace

bool nodes_alike(const Group& group, int64_t devices_per_node, const Round& round) {
  // All nodes look alike if a shift of all devices by one node maps groups to groups. It does if a
  // node consists of whole blocks of size * stride devices, or such a block of whole nodes.
  const int64_t block = group.size * group.stride;
  if (devices_per_node % block == 0) return true;
  if (block % devices_per_node != 0 || round.of == 1) return block % devices_per_node == 0;
  // With rounds, the shift must also map the blocks of places of a round (Round) to each other: a
  // node must consist of whole blocks, or a block of whole nodes.
  const int64_t members = round.members(group);
  return group.stride == 1 && (devices_per_node % members == 0 || members % devices_per_node == 0);
}

int64_t members_in_node(const NodeLayout& layout, const Group& group, int64_t device,
                        const Round& round) {
  const Places in_node = places_in_node(layout, group, device);
  const int64_t first = round.sends_to(group, group.place(device));
  const int64_t last = first + round.members(group) - 1;
  return std::max<int64_t>(0, std::min(last, in_node.last) - std::max(first, in_node.first) + 1);
}

Rings make_rings(const NodeLayout& layout, const Group& group, int64_t rings,
                 int64_t devices_seen) {
  struct NodeHop {
    int64_t from, to;
    std::vector<int64_t> out, in;
  };
  Rings made;
  std::vector<NodeHop> node_hops;
  for (int64_t from = 0; from < devices_seen && group.size > 1; ++from) {
    const int64_t to = group.member(from, (group.place(from) + 1) % group.size);
    if (from / layout.devices_per_node == to / layout.devices_per_node) {
      made.hops.push_back({from, to, -1, -1, 0});
    } else {
      node_hops.push_back({from, to, nics_of(layout, group, from), nics_of(layout, group, to)});
    }
  }
  made.count = rings;
  for (size_t i = 0; i < node_hops.size() && rings == 0; ++i) {
    const auto nics =
        static_cast<int64_t>(std::min(node_hops[i].out.size(), node_hops[i].in.size()));
    made.count = i == 0 ? nics : std::min(made.count, nics);
  }
  made.count = std::max<int64_t>(1, made.count);
  for (RingHop& hop : made.hops) hop.rings = made.count;
  for (const NodeHop& c : node_hops) {
    const auto ways = static_cast<int64_t>(std::lcm(c.out.size(), c.in.size()));
    for (int64_t w = 0; w < std::min(ways, made.count); ++w) {
      made.hops.push_back({c.from, c.to, c.out[static_cast<size_t>(w) % c.out.size()],
                           c.in[static_cast<size_t>(w) % c.in.size()],
                           made.count / ways + (w < made.count % ways ? 1 : 0)});
    }
  }
  return made;
}

}  // namespace moe
