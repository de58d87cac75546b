// How long a collective takes alone on the wire. One model for the simulator and for the emulated
// link. A link is one direction of a device port or of a NIC; a transfer ends at the largest
// load/bandwidth over all links, plus two link latencies (out and in) - exact for ideal max-min
// sharing when nothing else is on the links. Collectives that meet are a matter for the contention
// model, which takes the same Cluster and stands beside this file. Times are rounded to the nearest
// nanosecond. An all-to-all adds the cluster's start-up. Byte counts that are negative or not
// finite are a UserError that names them. All require a cluster that check() lets pass.
// `group` (base/group.h): all groups of the cluster do the same at once, each within itself, and
// share its links; all devices are one group unless said otherwise.
// A time beyond kLongestNs (base/limits.h) is a UserError that names bytes and links.
#pragma once

#include <span>
#include <string>

#include "engine/base/group.h"
#include "engine/cluster/cluster.h"

namespace moe {

/// Every ordered pair of different devices of a group that meet in `round` exchanges
/// `bytes_per_pair`.
Nanoseconds all_to_all_ns(const Cluster& cluster, double bytes_per_pair, Group group = {},
                          const Round& round = {});
/// bytes[i * N + j] from device i to device j; the diagonal stays in memory and is free.
/// N = cluster.num_devices(); another size or a negative entry is a UserError that names it. A NIC
/// is shared by neighbours: with 4 NICs for 8 devices by the devices 2i and 2i+1 of the node.
/// `group` and `round` say with how many peers each device starts up; what the matrix holds is what
/// moves.
Nanoseconds all_to_all_v_ns(const Cluster& cluster, std::span<const double> bytes, Group group = {},
                            const Round& round = {});
/// Rings in rank order (rings.h): 2 (n-1) dependent steps of floor(bytes / n / rings) each for n
/// members, a step as long as its slowest link. rings: how many, 0 for one per NIC.
Nanoseconds all_reduce_ns(const Cluster& cluster, double bytes, int64_t rings = 0,
                          Group group = {});
/// Binomial tree, first over the nodes, then inside each: ceil(log2) of either number of steps of
/// `bytes`, from one device to all.
Nanoseconds broadcast_ns(const Cluster& cluster, double bytes);

/// "<what> with cluster.intra.bytes_per_s = 1e-09, ...": all that a transfer's time rests on, for
/// errors.
std::string with_links(const std::string& what, const Cluster& cluster);

}  // namespace moe
