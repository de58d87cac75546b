// Closed forms: how long a collective takes that has the links for itself. The simulator and the
// emulated link both use them. A link is one direction of a device port or of a NIC. A transfer
// ends after the largest bytes / bandwidth over all links plus the latency of two links (out and
// in), which is exact for ideal max-min sharing. Times are rounded to the nearest nanosecond. Each
// collective adds its start-up time of the cluster. Collectives that share links are not here but
// in contention.h.
//
// Common to all functions:
// Requires: a cluster that check() accepts. Throws UserError for a byte count that is negative or
// not finite, naming it, and for a time beyond kLongestNs (base/limits.h), naming bytes and links.
// `group` (base/group.h): all groups of the cluster run the same collective at once, each among its
// own members, and share the links; by default all devices are one group. `rank` (AllReduce::rank):
// only the group of this rank runs it; -1: all groups do.
#pragma once

#include <span>
#include <string>

#include "engine/base/group.h"
#include "engine/cluster/cluster.h"
#include "engine/network/all_reduce.h"

namespace moe {

/// Time of an all-to-all of `bytes_per_pair` bytes from each device to each of its peers in
/// `round`.
Nanoseconds all_to_all_ns(const Cluster& cluster, double bytes_per_pair, Group group = {},
                          const Round& round = {}, int64_t rank = -1);
/// Time of an all-to-all with a size per pair: bytes[i * N + j] from device i to device j, where N
/// = cluster.num_devices(); with `rank`, bytes[i * n + j] between the places of its n members.
/// Bytes from a device to itself cost nothing. Throws UserError for a matrix of another size or a
/// negative entry. Neighbouring devices share a NIC: with 4 NICs for 8
/// devices, devices 2i and 2i+1 of a node share NIC i. `group` and `round` only give the number of
/// peers for the start-up time; the bytes that move are those of the matrix.
Nanoseconds all_to_all_v_ns(const Cluster& cluster, std::span<const double> bytes, Group group = {},
                            const Round& round = {}, int64_t rank = -1);
/// Time of an all-reduce, or of the part of one that `op` states, by algorithm_of() (all_reduce.h):
/// its start-up and the sum over its steps of ReducePhase::wait_ns and the slowest link's time.
Nanoseconds all_reduce_ns(const Cluster& cluster, AllReduce op, Group group = {});

/// Time of a transfer of `bytes` from one device to another, in the same node or, if `far`, in
/// another one, while the devices that share its NIC send as many.
Nanoseconds send_ns(const Cluster& cluster, double bytes, bool far);

/// Returns "<what> with cluster.intra.bytes_per_s = 1e-09, ...", with the rates and latencies of
/// the links, the start-up times of all-to-alls and the sharing efficiency. For error messages.
std::string with_links(const std::string& what, const Cluster& cluster);

}  // namespace moe
