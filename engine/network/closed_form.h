// How long a collective takes alone on the wire. One law for the simulator and for the emulated link.
// A link is one direction of a device port or of a NIC; a transfer ends at the largest load/bandwidth
// over all links, plus two link latencies (out and in) - exact for ideal max-min sharing when
// nothing else is on the links. Collectives that meet are a matter for the contention model, which
// takes the same Cluster and stands beside this file.
#pragma once

#include <span>

#include "engine/cluster/cluster.h"

namespace moe {

/// Every ordered pair of different devices exchanges `bytes_per_pair`.
Nanoseconds all_to_all_ns(const Cluster& cluster, double bytes_per_pair);
/// bytes[i * N + j] from device i to device j; the diagonal stays in memory and is free.
/// Requires: N = cluster.num_devices(), no negative entry.
Nanoseconds all_to_all_v_ns(const Cluster& cluster, std::span<const double> bytes);
/// Ring in rank order: 2 (N-1) dependent steps of bytes/N each.
Nanoseconds all_reduce_ns(const Cluster& cluster, double bytes);
/// Binomial tree: ceil(log2 N) steps of `bytes`.
Nanoseconds broadcast_ns(const Cluster& cluster, double bytes);

}  // namespace moe
