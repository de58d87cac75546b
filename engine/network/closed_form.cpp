#include "engine/network/closed_form.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "engine/base/errors.h"
#include "engine/network/fabric.h"

namespace moe {
namespace {

/// `load` bytes over one link and the link's traversal out and in. Requires: bytes_per_s > 0.
double step_ns(double load, double bytes_per_s, Nanoseconds latency_ns) {
  return load * kNsPerSecond / bytes_per_s + 2.0 * static_cast<double>(latency_ns);
}

double port_step_ns(const Cluster& cluster, double load) {
  return step_ns(load, cluster.intra.bytes_per_s, cluster.intra.latency_ns);
}

double nic_step_ns(const Cluster& cluster, const NodePorts& ports, double load) {
  return step_ns(load, ports.bytes_per_s, cluster.nic.latency_ns);
}

/// An all-to-all whose most loaded device port and NIC carry so many bytes; idle links cost
/// nothing.
double slowest_ns(const Cluster& cluster, const NodePorts& ports, double port_load,
                  double nic_load) {
  return std::max(port_load > 0 ? port_step_ns(cluster, port_load) : 0.0,
                  nic_load > 0 ? nic_step_ns(cluster, ports, nic_load) : 0.0);
}

Nanoseconds nearest(double ns) {
  if (!(ns < 0x1p62)) throw user_error("bytes: a transfer of {:g} s is beyond the clock", ns / 1e9);
  return std::llround(ns);
}

Nanoseconds a2a_start_up(const Cluster& cluster) {
  const int64_t peers = cluster.num_devices() - 1;
  return peers == 0 ? 0 : cluster.a2a_base_ns + cluster.a2a_per_peer_ns * peers;
}

void check_bytes(const char* what, double bytes) {
  if (!std::isfinite(bytes) || bytes < 0) {
    throw user_error("{} = {}: must be a finite number of at least 0", what, bytes);
  }
}

/// Bytes on every link of the cluster.
struct Loads {
  std::vector<double> port_out, port_in;  // by device
  std::vector<double> nic_out, nic_in;    // by node * groups + group
};

Loads link_loads(const Cluster& cluster, const NodePorts& ports, std::span<const double> bytes) {
  const size_t n = static_cast<size_t>(cluster.num_devices());
  const size_t per_node = static_cast<size_t>(cluster.devices_per_node);
  const size_t per_group = static_cast<size_t>(ports.devices_per_group);
  const size_t num_groups = n / per_group;
  Loads loads{std::vector<double>(n), std::vector<double>(n), std::vector<double>(num_groups),
              std::vector<double>(num_groups)};
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      const double load = bytes[i * n + j];
      if (!std::isfinite(load) || load < 0) {
        throw user_error("bytes[{}][{}] = {}: must be a finite number of at least 0", i, j, load);
      }
      if (i == j) continue;
      if (i / per_node == j / per_node) {
        loads.port_out[i] += load;
        loads.port_in[j] += load;
      } else {
        loads.nic_out[i / per_group] += load;
        loads.nic_in[j / per_group] += load;
      }
    }
  }
  return loads;
}

double largest(const std::vector<double>& a, const std::vector<double>& b) {
  return std::max(*std::max_element(a.begin(), a.end()), *std::max_element(b.begin(), b.end()));
}

}  // namespace

Nanoseconds all_to_all_ns(const Cluster& cluster, double bytes_per_pair) {
  check_bytes("bytes_per_pair", bytes_per_pair);
  const NodePorts ports = node_ports(cluster);
  const double in_node = static_cast<double>(cluster.devices_per_node - 1) * bytes_per_pair;
  const int64_t far = cluster.num_devices() - cluster.devices_per_node;
  const double between = static_cast<double>(ports.devices_per_group * far) * bytes_per_pair;
  return nearest(slowest_ns(cluster, ports, in_node, between)) + a2a_start_up(cluster);
}

Nanoseconds all_to_all_v_ns(const Cluster& cluster, std::span<const double> bytes) {
  const size_t n = static_cast<size_t>(cluster.num_devices());
  if (bytes.size() != n * n) {
    throw user_error("bytes: {} entries, must be {} rows of {} (one a device of the cluster)",
                     bytes.size(), n, n);
  }
  const NodePorts ports = node_ports(cluster);
  const Loads loads = link_loads(cluster, ports, bytes);
  const double wire = slowest_ns(cluster, ports, largest(loads.port_out, loads.port_in),
                                 largest(loads.nic_out, loads.nic_in));
  return nearest(wire) + a2a_start_up(cluster);
}

Nanoseconds all_reduce_ns(const Cluster& cluster, double bytes, int64_t rings) {
  check_bytes("bytes", bytes);
  const NodePorts ports = node_ports(cluster);
  if (rings < 0) throw user_error("rings = {}: must be at least 0 (0: one a NIC)", rings);
  const int64_t num_rings = rings > 0 ? rings : cluster.nodes > 1 ? ports.groups : 1;
  const int64_t n = cluster.num_devices();
  if (n == 1 || bytes == 0) return 0;
  const double chunk = std::floor(bytes / static_cast<double>(n * num_rings));
  const double rings_a_nic = static_cast<double>((num_rings + ports.groups - 1) / ports.groups);
  double step = 0;
  if (cluster.devices_per_node > 1) {
    step = port_step_ns(cluster, static_cast<double>(num_rings) * chunk);
  }
  if (cluster.nodes > 1) {
    step = std::max(step, nic_step_ns(cluster, ports, rings_a_nic * chunk));
  }
  return nearest(2.0 * static_cast<double>(n - 1) * step);
}

Nanoseconds broadcast_ns(const Cluster& cluster, double bytes) {
  check_bytes("bytes", bytes);
  if (bytes == 0) return 0;
  const auto steps = [](int64_t members) {
    return static_cast<double>(std::bit_width(static_cast<uint64_t>(members - 1)));
  };
  double total = 0;
  if (cluster.nodes > 1) {
    total += steps(cluster.nodes) * nic_step_ns(cluster, node_ports(cluster), bytes);
  }
  if (cluster.devices_per_node > 1) {
    total += steps(cluster.devices_per_node) * port_step_ns(cluster, bytes);
  }
  return nearest(total);
}

}  // namespace moe
