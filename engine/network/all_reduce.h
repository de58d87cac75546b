// The algorithms of an all-reduce of M bytes in a group of n members, of which p are in each of k
// nodes: which bytes cross which links, in which order. Their times are in closed_form.h (alone)
// and contention.h (with other collectives).
//   ring       2 (n-1) steps; in each, a member sends M/n to the next in rank order.
//   tree       NCCL's double binary tree: half of the bytes goes up and down one tree of the nodes,
//              half another one, in which the inner nodes of the first are leaves; inside a node
//              along a chain. A node sends min(k, 4)/2 x M: it has at most three neighbours in one
//              tree and one in the other. Sanders, Speck, Traeff, "Two-tree algorithms for full
//              bandwidth broadcast, reduction and scan", 2009.
//   two_level  a reduce-scatter by ring inside the node, rings of the members at the same place in
//              their nodes, an all-gather by ring inside the node.
//   in_switch  the switch of a node adds what its devices send (NVLink SHARP, NCCL's NVLS): a
//              device sends M for the sum and M/p of the result, and receives as much. Between
//              nodes the sums take the trees.
// tree and in_switch send pieces behind each other. With the latency L of the longest way (and the
// start-up) and the time T of the fullest link for all bytes, the best number of pieces takes
// L + T + 2 sqrt(L T) (as the paper above derives for the trees).
// A reduce-scatter, after which each member has M/n of the sums, is the first half of a ring or of
// two_level, an all-gather the second: half of the steps and bytes. They never take tree or
// in_switch, which have no such halves here.
#pragma once

#include <vector>

#include "engine/base/group.h"
#include "engine/cluster/cluster.h"
#include "engine/network/rings.h"

namespace moe {

/// Share of a link's rate that a tree reaches, where a ring reaches all of it: NCCL's own model for
/// choosing an algorithm (src/graph/tuning.cc, "busBw*.9").
constexpr double kTreeShare = 0.9;

/// Which part of an all-reduce is done.
enum class ReducePart : uint8_t { kWhole, kReduceScatter, kAllGather };

/// An all-reduce, a reduce-scatter or an all-gather.
struct AllReduce {
  double bytes = 0;   // of the whole message: before a reduce-scatter, after an all-gather
  int64_t rings = 0;  // rings per group; 0 means one per NIC
  /// An algorithm that the group's place in the nodes does not allow is replaced by kRing: all but
  /// kRing need k nodes with p members each; kTree k > 1; kTwoLevel k > 1 and p > 1; kInSwitch
  /// p > 1 and Cluster::in_switch. kTree and kInSwitch need ReducePart::kWhole.
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kRing;
  /// Only the group of this rank reduces; -1: all groups do, at the same time.
  int64_t rank = -1;
  ReducePart part = ReducePart::kWhole;
};

/// A phase of an all-reduce: `steps` equal steps, one after the other; the first step of an op
/// begins after Cluster::all_reduce_base_ns. A step waits for wait_ns and the latency of its links;
/// then every flow of its hops moves near_bytes (inside a node) or far_bytes.
struct ReducePhase {
  int64_t steps = 0;
  double wait_ns = 0;
  double near_bytes = 0, far_bytes = 0;
  std::vector<RingHop> hops = {};
};

/// Returns the algorithm that the op takes: op.algorithm, or kRing if the group does not allow it;
/// with kQuickest the one with the shortest all_reduce_ns() (closed_form.h), and the first in the
/// order of the enum where times are equal.
AllReduceAlgorithm algorithm_of(const Cluster& cluster, const AllReduce& op, const Group& group);

/// Returns the phases of the op by op.algorithm, which must be one that algorithm_of() returned.
/// `layout` is that of a Fabric or of the cluster; hops begin at its devices [0, devices_seen).
/// Returns no phase for 0 bytes or groups of 1. Requires: a resolved group.
std::vector<ReducePhase> reduce_phases(const Cluster& cluster, const NodeLayout& layout,
                                       const AllReduce& op, const Group& group,
                                       int64_t devices_seen);

}  // namespace moe
