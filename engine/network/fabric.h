// The links of a cluster and the two of them that a transfer crosses: inside a node the ports of
// its two devices, between nodes the NICs of either side (the ports are not on that way). A link is
// one direction. Values only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cluster/cluster.h"

namespace moe {

/// The devices of a node fall into groups; a group's traffic to other nodes shares one NIC link of
/// bytes_per_s each way. With fewer NICs than devices, a group shares a NIC; with more, a device has
/// several. Requires: a cluster that check() lets pass.
struct NodePorts {
  int64_t groups;
  int64_t devices_per_group;
  double bytes_per_s;
};
NodePorts node_ports(const Cluster& cluster);

/// Of an all-to-all with so many peers; 0 without any.
Nanoseconds a2a_start_up_ns(const Cluster& cluster, int64_t peers);

enum class LinkKind { kPortOut, kPortIn, kNicOut, kNicIn };
const char* link_kind_name(LinkKind kind);  // "port_out"

/// `index`: the device (ports) or the group (NICs) within its node.
struct LinkName {
  LinkKind kind = LinkKind::kPortOut;
  int64_t node = 0;
  int64_t index = 0;
};

/// A link carries so much from begin to end.
struct LinkUse {
  uint32_t link = 0;
  double begin_ns = 0;
  double end_ns = 0;
  double bytes_per_s = 0;
};

/// Links [first, last) of which no transfer leaves: the ports of a node, or all NICs.
struct LinkPart {
  uint32_t first = 0;
  uint32_t last = 0;
};

class Fabric {
 public:
  struct Path {
    uint32_t out;
    uint32_t in;
    bool far;  // by NIC
  };

  /// nodes_alike: every transfer stands for the same one from every other node, so that one node's
  /// links are enough. A single node's devices are then alike too, and become nodes of one device.
  Fabric(const Cluster& cluster, bool nodes_alike);

  int64_t nodes() const { return nodes_; }
  int64_t devices_per_node() const { return devices_per_node_; }
  int64_t num_devices() const { return nodes_ * devices_per_node_; }
  bool nodes_alike() const { return alike_; }
  /// Nodes, and devices, whose links are here.
  int64_t nodes_seen() const { return alike_ ? 1 : nodes_; }
  int64_t devices_seen() const { return nodes_seen() * devices_per_node_; }
  /// The seen device that device `device` is, or is like.
  int64_t seen(int64_t device) const { return alike_ ? device % devices_per_node_ : device; }

  Path path(int64_t source, int64_t destination) const;
  /// From NIC `nic` of `node` to `to_nic` of another node.
  Path nic_path(int64_t node, int64_t nic, int64_t to_node, int64_t to_nic) const;
  int64_t devices_per_nic() const { return devices_per_group_; }
  /// Two traversals, out and in.
  double latency_ns(bool far) const { return far ? nic_latency_ns_ : port_latency_ns_; }

  const std::vector<double>& bytes_per_s() const { return bytes_per_s_; }  // by link
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
