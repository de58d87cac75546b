// The links of a cluster, and the two links that a transfer crosses: inside a node the ports of its
// two devices, between nodes one NIC of either node (and no ports). A link is one direction. Values
// only; how flows share links is in fair_share.h and link_clock.h.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/names.h"
#include "engine/cluster/cluster.h"

namespace moe {

/// How the devices of a node use its NICs. The devices are divided into `groups` groups; the
/// traffic of a group to other nodes uses one NIC link with `bytes_per_s` in each direction. With
/// fewer NICs than devices, the devices of a group share one NIC; with more, a group is one device
/// and its link combines several NICs.
struct NodePorts {
  int64_t groups;
  int64_t devices_per_group;
  double bytes_per_s;
};
/// Returns how the devices of each node use its NICs. Requires: a cluster that check() accepts.
NodePorts node_ports(const Cluster& cluster);

/// Returns the start-up time of an all-to-all in which each device has `peers` peers; 0 for none.
Nanoseconds a2a_start_up_ns(const Cluster& cluster, int64_t peers);

enum class LinkKind { kPortOut, kPortIn, kNicOut, kNicIn };
constexpr std::array<const char*, 4> names_of(LinkKind) {
  return {"port_out", "port_in", "nic_out", "nic_in"};
}

/// A link; `index` in its node is the device for ports, the group (NodePorts) for NICs.
struct LinkName {
  LinkKind kind = LinkKind::kPortOut;
  int64_t node = 0;
  int64_t index = 0;
};

/// Link number `link` carries `bytes_per_s` (all its flows together) from `begin_ns` to `end_ns`.
struct LinkUse {
  uint32_t link = 0;
  double begin_ns = 0;
  double end_ns = 0;
  double bytes_per_s = 0;
};

/// Links [first, last) that share no transfer with other links: the ports of one node, or all NICs.
struct LinkPart {
  uint32_t first = 0;
  uint32_t last = 0;
};

class Fabric {
 public:
  struct Path {
    uint32_t out;
    uint32_t in;
    bool far;  // between nodes, by NIC
  };

  /// `nodes_alike`: all nodes have the same transfers, so the fabric holds only one node's links.
  /// In a cluster of one node, each device then counts as a node.
  Fabric(const Cluster& cluster, bool nodes_alike);

  int64_t nodes() const { return nodes_; }
  int64_t devices_per_node() const { return devices_per_node_; }
  int64_t num_devices() const { return nodes_ * devices_per_node_; }
  bool nodes_alike() const { return alike_; }
  /// Number of nodes, and of devices, whose links the fabric holds ("seen" nodes and devices).
  int64_t nodes_seen() const { return alike_ ? 1 : nodes_; }
  int64_t devices_seen() const { return nodes_seen() * devices_per_node_; }
  /// The seen device that represents `device`: itself, or the device at the same place in node 0.
  int64_t seen(int64_t device) const { return alike_ ? device % devices_per_node_ : device; }

  /// The links of a transfer from device `source` to device `destination`.
  Path path(int64_t source, int64_t destination) const;
  /// The links of a transfer from NIC `nic` of `node` to NIC `to_nic` of another node.
  Path nic_path(int64_t node, int64_t nic, int64_t to_node, int64_t to_nic) const;
  int64_t devices_per_nic() const { return devices_per_group_; }
  /// Latency of a transfer: one traversal out and one in. `far`: between nodes.
  double latency_ns(bool far) const { return far ? nic_latency_ns_ : port_latency_ns_; }

  const std::vector<double>& bytes_per_s() const { return bytes_per_s_; }  // indexed by link
  const std::vector<LinkPart>& parts() const { return parts_; }
  LinkName name(uint32_t link) const;

 private:
  uint32_t nic_link(int64_t node, int64_t group) const;

  int64_t nodes_, devices_per_node_, groups_, devices_per_group_;
  bool alike_, one_node_;
  double port_latency_ns_, nic_latency_ns_;
  std::vector<double> bytes_per_s_;
  std::vector<LinkPart> parts_;
};

}  // namespace moe
