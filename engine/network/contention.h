// How long collectives take that meet on the links of a cluster. Values in, values out: ideal fluid
// sharing (weighted max-min) of the same links and latencies as the closed forms, to which a
// collective alone on the wire comes back within a nanosecond. A transfer first waits the latency
// of its two links, then moves its bytes. What is not modelled: queues in a switch, congestion
// control, a device's memory and copy engines.
//
// A direct all-to-all alone on the wire shares links by bytes, one beside others by the rule: with
// pairs of different sizes, equal rates may leave the fullest link idle near the end.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/group.h"
#include "engine/network/fabric.h"

namespace moe {

/// direct: all pairs at once. pairwise: n-1 rounds, in round k member i sends to i+k; a round ends
/// with its slowest pair.
enum class AllToAllAlgorithm { kDirect, kPairwise };

/// Starts up (Cluster::a2a_base_ns, a2a_per_peer_ns), then moves.
struct AllToAll {
  double bytes_per_pair = 0;
  /// N rows of N, from i to j at [i * N + j], instead of bytes_per_pair; empty: not given. The
  /// diagonal is free.
  std::vector<double> bytes;
  AllToAllAlgorithm algorithm = AllToAllAlgorithm::kDirect;
  /// For Share::kPerChannel: of each device, shared by its sends.
  int64_t channels = 1;
  /// Of the group's exchange in rounds: only its pairs move, at once; the start-up counts them.
  Round round = {};
};

/// Rings in rank order as all_reduce_ns() has them: 2 (n-1) dependent steps; a step ends with its
/// slowest link. rings: 0 for one per NIC.
struct AllReduce {
  double bytes = 0;
  int64_t rings = 0;
};

struct NetworkOp {
  std::variant<AllToAll, AllReduce> what;
  /// All groups do the same at once, each within itself; of a matrix, what it holds between members
  /// of a group moves.
  Group group = {};
  /// Earlier ops, by index; it starts when the last of them ended and start_ns have passed.
  std::vector<size_t> after;
  Nanoseconds start_ns = 0;
  /// Later by this much, by rank; empty: none. A pair moves when both ranks are there; algorithms
  /// in rounds or steps wait for all.
  std::vector<Nanoseconds> rank_start_ns;
  int64_t priority = 0;  // higher first; for Share::kStrictPriority
};

struct NetworkOptions {
  Share share = Share::kPerFlow;
  double efficiency = 1;  // as Cluster::sharing_efficiency
  bool keep_use = false;
};
/// The rule that the cluster names.
NetworkOptions network_options(const Cluster& cluster, bool keep_use = false);

struct NetworkTimes {
  Nanoseconds begin_ns = 0;
  Nanoseconds end_ns = 0;
  /// When the last transfer from or to the rank ended.
  std::vector<Nanoseconds> rank_end_ns;
};

struct NetworkRun {
  std::vector<NetworkTimes> ops;
  int64_t num_events = 0;
  /// Where all nodes do the same one node's links stand for all; then links and use are of node 0.
  bool nodes_alike = false;
  std::vector<LinkName> links;
  std::vector<LinkUse> use;  // with keep_use
};

/// Throws UserError naming the field ("ops[2].bytes[3][7]", from 0), the value and what is allowed:
/// a matrix that is not N x N, bytes that are negative or not finite, counts below their least
/// value, an efficiency outside (0, 1], a cluster that check() refuses.
/// Memory grows with the square of the ranks only where a matrix has pairs that differ, or ranks
/// start apart.
NetworkRun run_collectives(const Cluster& cluster, const std::vector<NetworkOp>& ops,
                           const NetworkOptions& options = {});

/// How long the op takes with nothing else on the links, counted from its begin (without `after`
/// and start_ns): by closed form where there is one, else as run_collectives() has it.
Nanoseconds alone_ns(const Cluster& cluster, const NetworkOp& op);
/// Transfers of an op are the same seen from every node.
bool is_alike(const NetworkOp& op, const Cluster& cluster);
/// The closed form: of an all-reduce and of a direct all-to-all whose ranks all start together;
/// null for other ops.
std::optional<Nanoseconds> closed_form_ns(const Cluster& cluster, const NetworkOp& op);

}  // namespace moe
