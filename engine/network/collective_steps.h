// A collective as steps of transfers on a fabric: the next step begins when every transfer of the
// last one has ended.
#pragma once

#include <tuple>
#include <vector>

#include "engine/network/contention.h"
#include "engine/network/link_clock.h"
#include "engine/network/rings.h"

namespace moe {

/// Streams [first, last) of a step, which begin to move `delay_ns` after the step.
struct TransferBatch {
  double delay_ns = 0;
  size_t first = 0;
  size_t last = 0;
};

struct Step {
  std::vector<Flow> flows;  // devices as the fabric sees them
  std::vector<Stream> streams;
  std::vector<TransferBatch> batches;
};

/// The same transfers with all times longer by the factor.
void stretch(Step& step, double factor);

/// Every pair of different devices of a group exchanges the same number of bytes. Requires: a
/// resolved group.
bool is_even(const AllToAll& a2a, const Group& group, int64_t num_devices);

class CollectiveSteps {
 public:
  /// The cluster's start-up and NICs, the fabric and the op outlive it.
  CollectiveSteps(const Cluster& cluster, const Fabric& fabric, const NetworkOp& op, Share share);

  int64_t num_steps() const { return num_steps_; }
  /// From the op's begin to its first step.
  double start_up_ns() const { return start_up_ns_; }
  /// Makes step k in `step`, which is that of k-1 (k > 0) or new; false where it stays as it is.
  /// alone: nothing else moves until
  /// it ends; then a direct all-to-all shares links by bytes, which keeps the fullest link busy to
  /// the end, as the closed form has it, and costs an event per link, not a pair.
  bool make_step(int64_t k, bool alone, Step& step) const;

 private:
  /// A transfer before transfers are sorted into streams.
  struct Transfer {
    double delay_ns;
    uint32_t out, in;
    double weight;
    Flow flow;
    /// What makes a stream, and its bytes.
    auto key() const { return std::tie(delay_ns, out, in, weight, flow.bytes); }
  };

  bool is_direct() const;
  double pair_bytes(int64_t i, int64_t j) const;
  std::vector<Transfer> direct() const;
  std::vector<Transfer> round(int64_t k) const;
  std::vector<Transfer> ring_step() const;
  /// To rank j, and all that rank i sends; nothing where there are no bytes.
  void add_pair(std::vector<Transfer>& all, int64_t i, int64_t j, int64_t count) const;
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
  double latest_ns_ = 0;  // of the ranks' starts
  Rings rings_;
  double start_up_ns_ = 0;
};

}  // namespace moe
