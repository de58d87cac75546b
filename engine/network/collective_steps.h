// A collective as a sequence of steps, each a set of transfers on a fabric. A step begins when
// every transfer of the step before has ended. The event loop that runs steps is in wire.cpp.
#pragma once

#include <tuple>
#include <vector>

#include "engine/network/contention.h"
#include "engine/network/link_clock.h"
#include "engine/network/rings.h"

namespace moe {

/// Streams [first, last) of a step; they begin to move `delay_ns` after the step begins.
struct TransferBatch {
  double delay_ns = 0;
  size_t first = 0;
  size_t last = 0;
};

struct Step {
  std::vector<Flow> flows;  // source and destination are seen devices (Fabric)
  std::vector<Stream> streams;
  std::vector<TransferBatch> batches;
};

/// Multiplies the bytes and delays of the step by `factor`, and thereby the time that it takes.
void stretch(Step& step, double factor);

/// Returns whether all pairs of different devices of the same group, in all groups, send the same
/// number of bytes; with AllToAll::rank, of that group. Requires: a group that resolve() returned.
bool is_even(const AllToAll& a2a, const Group& group, int64_t num_devices);

/// The steps of one collective.
class CollectiveSteps {
 public:
  /// `fabric` and `op` must outlive the object.
  CollectiveSteps(const Cluster& cluster, const Fabric& fabric, const NetworkOp& op, Share share);

  int64_t num_steps() const { return num_steps_; }
  /// Nanoseconds from the begin of the op to its first step.
  double start_up_ns() const { return start_up_ns_; }
  /// Writes step k to `step`, which must be new if k = 0 and otherwise hold step k-1. Returns false
  /// if step k is the same as step k-1, so that `step` was not changed. `alone`: nothing else moves
  /// until the op ends. A direct all-to-all whose ranks begin together then shares links in
  /// proportion to bytes, which keeps the fullest link busy to the end, as the closed form assumes,
  /// and costs one event per link instead of one per pair of ranks. Other collectives ignore it.
  bool make_step(int64_t k, bool alone, Step& step) const;

 private:
  /// A transfer, before transfers are sorted into streams.
  struct Transfer {
    double delay_ns;
    uint32_t out, in;
    double weight;
    Flow flow;
    /// Sorting order: by the members that define a stream, then by bytes.
    auto key() const { return std::tie(delay_ns, out, in, weight, flow.bytes); }
  };

  bool is_direct() const;
  /// Whether device i exchanges bytes in this op.
  bool takes_part(int64_t i) const { return a2a_->rank < 0 || group_.same(i, a2a_->rank); }
  double pair_bytes(int64_t i, int64_t j) const;
  std::vector<Transfer> direct() const;
  std::vector<Transfer> round(int64_t k) const;
  std::vector<Transfer> reduce_step(const ReducePhase& phase) const;
  /// Appends a transfer from rank i to rank j, `count` times; nothing when the pair has no bytes.
  void add_pair(std::vector<Transfer>& all, int64_t i, int64_t j, int64_t count) const;
  /// Appends all transfers that rank i sends.
  void add_sends(std::vector<Transfer>& all, int64_t i) const;
  double delay_of(int64_t i, int64_t j) const;
  static void sort_into(std::vector<Transfer> all, Step& step);

  const Fabric& fabric_;
  const NetworkOp& op_;
  const AllToAll* a2a_;
  Group group_;
  bool even_ = false;
  bool by_channel_;
  int64_t num_steps_ = 0;
  double latest_ns_ = 0;             // the largest of op.rank_start_ns
  std::vector<ReducePhase> phases_;  // of an all-reduce
  double start_up_ns_ = 0;
};

}  // namespace moe
