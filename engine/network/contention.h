// How long collectives take that share the links of a cluster at the same time. Functions without
// state: ideal fluid sharing (weighted max-min, fair_share.h) of the same links and latencies that
// the closed forms use; for a collective without others on its links the result is within a
// nanosecond of its closed form. A transfer first waits for the latency of its two links, then
// moves its bytes. Not modelled: queues in a switch, congestion control, a device's memory and copy
// engines.
//
// A direct all-to-all that has the links for itself shares them in proportion to bytes; one that
// runs together with other collectives shares them by the Share rule. The latter may take longer:
// with pairs of different sizes, equal rates may leave the fullest link idle near the end.
#pragma once

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "engine/base/group.h"
#include "engine/network/all_reduce.h"
#include "engine/network/fabric.h"

namespace moe {

/// kDirect: all pairs exchange at once. kPairwise: n-1 rounds for n members; in round k member i
/// sends to member i+k, and a round ends with its slowest pair.
enum class AllToAllAlgorithm { kDirect, kPairwise };

/// An all-to-all: first the start-up (Cluster::a2a_base_ns, a2a_per_peer_ns), then the transfers.
struct AllToAll {
  double bytes_per_pair = 0;
  /// Bytes from device i to device j at [i * N + j], for N devices; if empty, every pair sends
  /// bytes_per_pair. Bytes from a device to itself cost nothing. With `rank`: from the member at
  /// place i to the one at place j, at [i * n + j], for n members.
  std::vector<double> bytes;
  AllToAllAlgorithm algorithm = AllToAllAlgorithm::kDirect;
  /// For Share::kPerChannel: the number of channels of each device, divided among its sends.
  int64_t channels = 1;
  /// The round of the group's exchange to which this op belongs. Only the pairs of that round
  /// exchange bytes, all at once, and only they count for the start-up.
  Round round = {};
  /// Only the group of this rank exchanges; -1: all groups do, at the same time.
  int64_t rank = -1;
};

struct NetworkOp {
  std::variant<AllToAll, AllReduce> what;
  /// All groups (or that of AllToAll::rank or AllReduce::rank) run the op at once, each among its
  /// own members. In a matrix of bytes, entries between different groups must be 0: the steps of
  /// the op do not move them, but its closed form counts them.
  Group group = {};
  /// Indices of earlier ops. The op begins `start_ns` after the last of these ends, or after 0.
  std::vector<size_t> after;
  Nanoseconds start_ns = 0;
  /// Additional delay of each rank, indexed by rank; empty means no delays. A direct all-to-all
  /// moves the bytes of a pair once both of its ranks have begun; other ops wait for all ranks.
  std::vector<Nanoseconds> rank_start_ns;
  int64_t priority = 0;  // a higher number is served first; for Share::kStrictPriority
};

struct NetworkOptions {
  Share share = Share::kPerFlow;
  double efficiency = 1;  // see Cluster::sharing_efficiency
  /// Whether NetworkRun::use is recorded.
  bool keep_use = false;
};
/// Returns the options with the share rule and the efficiency of `cluster`.
NetworkOptions network_options(const Cluster& cluster, bool keep_use = false);

struct NetworkTimes {
  Nanoseconds begin_ns = 0;
  Nanoseconds end_ns = 0;
  /// For each rank, the time when the last transfer from or to that rank ended.
  std::vector<Nanoseconds> rank_end_ns;
};

struct NetworkRun {
  /// Indexed like the argument `ops` of run_collectives().
  std::vector<NetworkTimes> ops;
  int64_t num_events = 0;
  /// True where all nodes have the same transfers, so that only one node's links were computed;
  /// then `links` and `use` are of node 0.
  bool nodes_alike = false;
  std::vector<LinkName> links;
  std::vector<LinkUse> use;  // only with NetworkOptions::keep_use
};

/// Runs all `ops` and returns their times. Throws UserError naming the field ("ops[2].bytes[3][7]",
/// counted from 0), the value and what is allowed: for a matrix that is not N x N, bytes that are
/// negative or not finite, counts that are too small, an efficiency outside (0, 1], or a cluster
/// that check() refuses. Memory grows with the square of the number of ranks only where a matrix
/// has pairs of different sizes or ranks begin at different times.
NetworkRun run_collectives(const Cluster& cluster, const std::vector<NetworkOp>& ops,
                           const NetworkOptions& options = {});

/// Returns how long the op takes with nothing else on the links, counted from its begin (without
/// `after` and start_ns): by closed form where there is one, otherwise from run_collectives().
Nanoseconds alone_ns(const Cluster& cluster, const NetworkOp& op);
/// Returns, from the bytes between all devices at [i * num_devices + j], those of the group of
/// `rank` as AllToAll::bytes has them. Requires: a resolved group.
std::vector<double> bytes_of_group(std::span<const double> bytes, const Group& group, int64_t rank,
                                   int64_t num_devices);
/// Returns whether the transfers of `op` are the same for every node.
bool is_alike(const NetworkOp& op, const Cluster& cluster);
/// Returns the closed form of an all-reduce or direct all-to-all whose ranks begin together;
/// nullopt for every other op.
std::optional<Nanoseconds> closed_form_ns(const Cluster& cluster, const NetworkOp& op);

}  // namespace moe
