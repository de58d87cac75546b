#include "engine/network/fabric.h"

#include <algorithm>

namespace moe {

NodePorts node_ports(const Cluster& cluster) {
  const int64_t groups = std::min(cluster.nics_per_node, cluster.devices_per_node);
  const double nics_per_group = static_cast<double>(cluster.nics_per_node / groups);
  return {groups, cluster.devices_per_node / groups, cluster.nic.bytes_per_s * nics_per_group};
}

Nanoseconds a2a_start_up_ns(const Cluster& cluster, int64_t peers) {
  return peers == 0 ? 0 : cluster.a2a_base_ns + cluster.a2a_per_peer_ns * peers;
}

// The order of links: for each node its outgoing ports, then its incoming ports; after all ports,
// for each node its outgoing NICs, then its incoming NICs.
Fabric::Fabric(const Cluster& cluster, bool nodes_alike)
    : nodes_(cluster.nodes),
      devices_per_node_(cluster.devices_per_node),
      alike_(nodes_alike),
      one_node_(cluster.nodes == 1) {
  const bool devices_alike = nodes_alike && one_node_;
  if (devices_alike) std::swap(nodes_, devices_per_node_);
  NodePorts ports = node_ports(cluster);
  if (devices_alike) ports = {1, 1, cluster.intra.bytes_per_s};
  groups_ = ports.groups;
  devices_per_group_ = ports.devices_per_group;
  port_latency_ns_ = 2.0 * static_cast<double>(cluster.intra.latency_ns);
  nic_latency_ns_ =
      devices_alike ? port_latency_ns_ : 2.0 * static_cast<double>(cluster.nic.latency_ns);
  const auto add_part = [&](int64_t links, double rate) {
    const auto first = static_cast<uint32_t>(bytes_per_s_.size());
    bytes_per_s_.resize(bytes_per_s_.size() + static_cast<size_t>(links), rate);
    parts_.push_back({first, static_cast<uint32_t>(bytes_per_s_.size())});
  };
  for (int64_t n = 0; n < nodes_seen(); ++n) {
    add_part(2 * devices_per_node_, cluster.intra.bytes_per_s);
  }
  add_part(2 * groups_ * nodes_seen(), ports.bytes_per_s);
}

uint32_t Fabric::nic_link(int64_t node, int64_t group) const {
  return parts_.back().first + static_cast<uint32_t>((alike_ ? 0 : node) * 2 * groups_ + group);
}

Fabric::Path Fabric::nic_path(int64_t node, int64_t nic, int64_t to_node, int64_t to_nic) const {
  return {nic_link(node, nic), nic_link(to_node, to_nic) + static_cast<uint32_t>(groups_), true};
}

Fabric::Path Fabric::path(int64_t source, int64_t destination) const {
  const int64_t node = source / devices_per_node_, to_node = destination / devices_per_node_;
  const int64_t i = source % devices_per_node_, j = destination % devices_per_node_;
  if (node != to_node) {
    return nic_path(node, i / devices_per_group_, to_node, j / devices_per_group_);
  }
  const uint32_t first = parts_[static_cast<size_t>(alike_ ? 0 : node)].first;
  return {first + static_cast<uint32_t>(i), first + static_cast<uint32_t>(devices_per_node_ + j),
          false};
}

LinkName Fabric::name(uint32_t link) const {
  const bool nic = link >= parts_.back().first;
  const int64_t width = nic ? groups_ : devices_per_node_;
  const int64_t at = nic ? link - parts_.back().first : link;
  const bool in = at % (2 * width) >= width;
  const bool is_port = !nic || (alike_ && one_node_);
  const LinkKind out_kind = is_port ? LinkKind::kPortOut : LinkKind::kNicOut;
  const LinkKind in_kind = is_port ? LinkKind::kPortIn : LinkKind::kNicIn;
  return {in ? in_kind : out_kind, at / (2 * width), at % width};
}

}  // namespace moe
