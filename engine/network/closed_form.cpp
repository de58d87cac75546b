#include "engine/network/closed_form.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/network/fabric.h"

namespace moe {
namespace {

/// Time to move `bytes` over a link, plus two latencies (out and in). Requires: bytes_per_s > 0.
double step_ns(double bytes, double bytes_per_s, Nanoseconds latency_ns) {
  return bytes * kNsPerSecond / bytes_per_s + 2.0 * static_cast<double>(latency_ns);
}

double port_step_ns(const Cluster& cluster, double bytes) {
  return step_ns(bytes, cluster.intra.bytes_per_s, cluster.intra.latency_ns);
}

double nic_step_ns(const Cluster& cluster, const NodePorts& ports, double bytes) {
  return step_ns(bytes, ports.bytes_per_s, cluster.nic.latency_ns);
}

/// Returns the time, without start-up, of an all-to-all whose fullest device port carries
/// `port_load` bytes and whose fullest NIC carries `nic_load` bytes. An empty link costs nothing.
double slowest_ns(const Cluster& cluster, const NodePorts& ports, double port_load,
                  double nic_load) {
  return std::max(port_load > 0 ? port_step_ns(cluster, port_load) : 0.0,
                  nic_load > 0 ? nic_step_ns(cluster, ports, nic_load) : 0.0);
}

/// Returns the time of an all-to-all: `wire_ns` for the transfer plus the start-up for `peers`
/// peers. Errors show the size as "<bytes> = <amount>".
Nanoseconds a2a_ns(const Cluster& cluster, double wire_ns, int64_t peers, const char* bytes,
                   double amount) {
  const auto what = [&] {
    return with_links(fmt::format("an all-to-all of {} = {:g}", bytes, amount), cluster);
  };
  return checked_ns(checked_ns(wire_ns, what) + a2a_start_up_ns(cluster, peers), what);
}

void check_bytes(const char* what, double bytes) {
  if (!std::isfinite(bytes) || bytes < 0) {
    throw user_error("{} = {}: must be a finite number of at least 0", what, bytes);
  }
}

/// Bytes that each link of the cluster carries in one all-to-all.
struct LinkBytes {
  std::vector<double> port_out, port_in;  // indexed by device
  std::vector<double> nic_out, nic_in;    // indexed by node * groups + group
};

void check_pair(std::span<const double> bytes, size_t n, size_t i, size_t j) {
  const double b = bytes[i * n + j];
  if (b >= 0 && b <= std::numeric_limits<double>::max()) return;
  throw user_error("bytes[{}][{}] = {}: must be a finite number of at least 0", i, j, b);
}

LinkBytes no_bytes(const Cluster& cluster, const NodePorts& ports) {
  const size_t n = static_cast<size_t>(cluster.num_devices());
  const size_t num_groups = n / static_cast<size_t>(ports.devices_per_group);
  return {std::vector<double>(n), std::vector<double>(n), std::vector<double>(num_groups),
          std::vector<double>(num_groups)};
}

/// Returns what the group of `rank` sends; `bytes` is indexed by the places of its members.
LinkBytes link_bytes_of_group(const Cluster& cluster, const NodePorts& ports,
                              std::span<const double> bytes, const Group& group, int64_t rank) {
  LinkBytes sent = no_bytes(cluster, ports);
  const auto n = static_cast<size_t>(group.size);
  for (size_t i = 0; i < n; ++i) {
    const int64_t from = group.member(rank, static_cast<int64_t>(i));
    for (size_t j = 0; j < n; ++j) {
      check_pair(bytes, n, i, j);
      if (i == j) continue;
      const int64_t to = group.member(rank, static_cast<int64_t>(j));
      const bool near = from / cluster.devices_per_node == to / cluster.devices_per_node;
      const int64_t share = near ? 1 : ports.devices_per_group;
      (near ? sent.port_out : sent.nic_out)[static_cast<size_t>(from / share)] += bytes[i * n + j];
      (near ? sent.port_in : sent.nic_in)[static_cast<size_t>(to / share)] += bytes[i * n + j];
    }
  }
  return sent;
}

LinkBytes link_bytes(const Cluster& cluster, const NodePorts& ports,
                     std::span<const double> bytes) {
  const size_t n = static_cast<size_t>(cluster.num_devices());
  const size_t per_node = static_cast<size_t>(cluster.devices_per_node);
  const size_t per_group = static_cast<size_t>(ports.devices_per_group);
  LinkBytes sent = no_bytes(cluster, ports);
  for (size_t i = 0; i < n; ++i) {
    const double* const row = &bytes[i * n];
    const size_t node = i / per_node * per_node;
    for (size_t j = 0; j < n; ++j) check_pair(bytes, n, i, j);
    for (size_t j = node; j < node + per_node; ++j) {
      if (i == j) continue;
      sent.port_out[i] += row[j];
      sent.port_in[j] += row[j];
    }
    double& nic_out = sent.nic_out[i / per_group];
    for (size_t j = 0; j < n; j += per_group) {
      if (j >= node && j < node + per_node) continue;
      for (size_t k = j; k < j + per_group; ++k) {
        nic_out += row[k];
        sent.nic_in[j / per_group] += row[k];
      }
    }
  }
  return sent;
}

NodeLayout layout_of(const Cluster& cluster, const NodePorts& ports) {
  return {cluster.num_devices(), cluster.devices_per_node, ports.devices_per_group};
}

/// Returns how many devices' transfers are computed: those of one node if nodes_alike(), else all.
int64_t devices_seen(const NodeLayout& layout, const Group& group, const Round& round = {}) {
  const bool alike = nodes_alike(group, layout.devices_per_node, round);
  return alike ? layout.devices_per_node : layout.num_devices;
}

double largest(const std::vector<double>& a, const std::vector<double>& b) {
  return std::max(*std::max_element(a.begin(), a.end()), *std::max_element(b.begin(), b.end()));
}

/// Returns the time of one step of the phase, with latencies but without ReducePhase::wait_ns.
double slowest_step_ns(const Cluster& cluster, const NodePorts& ports, const NodeLayout& layout,
                       const ReducePhase& phase, int64_t seen) {
  // Bytes out of and into each port and NIC of the seen devices.
  std::vector<double> port_out(static_cast<size_t>(seen)), port_in(port_out.size());
  std::vector<double> nic_out(static_cast<size_t>(seen / layout.devices_per_nic));
  std::vector<double> nic_in(nic_out.size());
  for (const RingHop& hop : phase.hops) {
    const auto flows = static_cast<double>(hop.rings);
    if (hop.nic_out < 0) {
      port_out[static_cast<size_t>(hop.from % seen)] += flows * phase.near_bytes;
      port_in[static_cast<size_t>(hop.to % seen)] += flows * phase.near_bytes;
      continue;
    }
    const auto nic = [&](int64_t device, int64_t number) {
      const int64_t node = device / layout.devices_per_node;
      return static_cast<size_t>(node * ports.groups + number) % nic_out.size();
    };
    nic_out[nic(hop.from, hop.nic_out)] += flows * phase.far_bytes;
    nic_in[nic(hop.to, hop.nic_in)] += flows * phase.far_bytes;
  }
  const auto has = [&](bool far) {
    return std::any_of(phase.hops.begin(), phase.hops.end(),
                       [&](const RingHop& hop) { return (hop.nic_out >= 0) == far; });
  };
  return std::max(has(false) ? port_step_ns(cluster, largest(port_out, port_in)) : 0.0,
                  has(true) ? nic_step_ns(cluster, ports, largest(nic_out, nic_in)) : 0.0);
}

}  // namespace

// Only outgoing bytes are counted: by symmetry (device i receives what device n - 1 - i would
// send), the most loaded incoming link carries as many bytes as the most loaded outgoing link.
Nanoseconds all_to_all_ns(const Cluster& cluster, double bytes_per_pair, Group group,
                          const Round& round, int64_t rank) {
  check_bytes("bytes_per_pair", bytes_per_pair);
  group = resolve(group, cluster.num_devices(), "all_to_all");
  check(round, group, "all_to_all");
  const NodePorts ports = node_ports(cluster);
  const NodeLayout layout = layout_of(cluster, ports);
  int64_t near = 0;  // largest number of peers of a device in its node
  const int64_t seen = rank < 0 ? devices_seen(layout, group, round) : layout.num_devices;
  std::vector<int64_t> far(static_cast<size_t>(seen / layout.devices_per_nic));  // pairs per NIC
  for (int64_t d = 0; d < seen; ++d) {
    if (rank >= 0 && !group.same(d, rank)) continue;
    const int64_t in_node = members_in_node(layout, group, d, round);
    near = std::max(near, in_node - (round.number == 0 ? 1 : 0));
    far[static_cast<size_t>(d / ports.devices_per_group)] += round.members(group) - in_node;
  }
  const double between = static_cast<double>(*std::max_element(far.begin(), far.end()));
  const double wire = slowest_ns(cluster, ports, static_cast<double>(near) * bytes_per_pair,
                                 between * bytes_per_pair);
  return a2a_ns(cluster, wire, round.peers(group), "bytes_per_pair", bytes_per_pair);
}

Nanoseconds all_to_all_v_ns(const Cluster& cluster, std::span<const double> bytes, Group group,
                            const Round& round, int64_t rank) {
  group = resolve(group, cluster.num_devices(), "all_to_all");
  const size_t n = static_cast<size_t>(rank < 0 ? cluster.num_devices() : group.size);
  if (bytes.size() != n * n) {
    throw user_error("bytes has {} entries: must be {} rows of {} (one per device of the {})",
                     bytes.size(), n, n, rank < 0 ? "cluster" : "group");
  }
  check(round, group, "all_to_all");
  const NodePorts ports = node_ports(cluster);
  const LinkBytes sent = rank < 0 ? link_bytes(cluster, ports, bytes)
                                  : link_bytes_of_group(cluster, ports, bytes, group, rank);
  const double port = largest(sent.port_out, sent.port_in);
  const double nic = largest(sent.nic_out, sent.nic_in);
  return a2a_ns(cluster, slowest_ns(cluster, ports, port, nic), round.peers(group),
                "bytes of a link", std::max(port, nic));
}

Nanoseconds all_reduce_ns(const Cluster& cluster, AllReduce op, Group group) {
  check_bytes("bytes", op.bytes);
  if (op.rings < 0) {
    throw user_error("rings = {}: must be at least 0 (0 means one per NIC)", op.rings);
  }
  group = resolve(group, cluster.num_devices(), "all_reduce");
  op.algorithm = algorithm_of(cluster, op, group);
  const NodePorts ports = node_ports(cluster);
  const NodeLayout layout = layout_of(cluster, ports);
  const int64_t seen = op.rank < 0 ? devices_seen(layout, group) : layout.num_devices;
  double total = 0;
  for (const ReducePhase& phase : reduce_phases(cluster, layout, op, group, seen)) {
    total += static_cast<double>(phase.steps) *
             (phase.wait_ns + slowest_step_ns(cluster, ports, layout, phase, seen));
  }
  if (total > 0) total += static_cast<double>(cluster.all_reduce_base_ns);
  return checked_ns(total, [&] {
    return with_links(fmt::format("an all-reduce of bytes = {:g}", op.bytes), cluster);
  });
}

Nanoseconds send_ns(const Cluster& cluster, double bytes, bool far) {
  check_bytes("bytes", bytes);
  const NodePorts ports = node_ports(cluster);
  const double of_nic = bytes * static_cast<double>(ports.devices_per_group);
  const double ns = slowest_ns(cluster, ports, far ? 0 : bytes, far ? of_nic : 0);
  return checked_ns(
      ns, [&] { return with_links(fmt::format("a transfer of bytes = {:g}", bytes), cluster); });
}

std::string with_links(const std::string& what, const Cluster& cluster) {
  const auto us = [](Nanoseconds ns) { return static_cast<double>(ns) / 1e3; };
  return fmt::format(
      "{} with cluster.intra.bytes_per_s = {:g}, intra.latency_us = {:g}, nic.bytes_per_s = {:g}, "
      "nic.latency_us = {:g}, a2a_base_us = {:g}, a2a_per_peer_us = {:g}, sharing_efficiency = "
      "{:g}",
      what, cluster.intra.bytes_per_s, us(cluster.intra.latency_ns), cluster.nic.bytes_per_s,
      us(cluster.nic.latency_ns), us(cluster.a2a_base_ns), us(cluster.a2a_per_peer_ns),
      cluster.sharing_efficiency);
}

}  // namespace moe
