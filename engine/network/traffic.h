// Collectives that move on the links of a fabric at the same time, step after step: the event loop
// between a LinkClock and the steps of collective_steps.h. Times are not rounded. Which collective
// has the links for itself, and when one begins, is decided in wire.cpp.
#pragma once

#include <cstddef>
#include <queue>
#include <unordered_map>
#include <vector>

#include "engine/network/collective_steps.h"

namespace moe {

/// A collective that was given to the wire. Not copyable, since `collective` refers to `op`.
struct Order {
  Order(const Cluster& cluster, const Fabric& fabric, NetworkOp network_op, Share share,
        double begin, double stretch);
  Order(const Order&) = delete;

  /// `scale` stretches all times, as Wire::begin() says; `first_step_ns`: when step 0 begins.
  const NetworkOp op;
  const CollectiveSteps collective;
  const double begin_ns;
  const double scale;
  const double first_step_ns;
};

/// A collective that has ended.
struct FinishedCollective {
  size_t op;
  double end_ns;
  std::vector<double> rank_end_ns;  // indexed by seen device (Fabric)
};

class Traffic {
 public:
  /// The fabric must outlive the traffic.
  Traffic(const Fabric& fabric, const NetworkOptions& options);

  /// Begins an op: its first step is at order.first_step_ns, or now if that time is past. The order
  /// must live until the op ends. `alone`: no other op will move until this one ends.
  void begin(size_t op, const Order& order, bool alone);
  bool empty() const { return running_.empty(); }
  /// Returns the time of the next event; infinity when there is none.
  double next_ns();
  /// Returns whether the op has begun its last step; false for an op that is not running.
  bool is_at_last_step(size_t op) const;
  /// Advances to next_ns(), which must be finite. Appends the collectives that ended.
  void step(std::vector<FinishedCollective>& ended);
  /// Returns what links carried, as LinkClock::take_use() does.
  std::vector<LinkUse> take_use();

 private:
  struct Running {
    const Order* order;
    bool alone;
    int64_t next_step = 0;
    size_t unfinished = 0;  // number of unfinished flows of the current step
    Step step = {};
    std::vector<double> rank_end_ns = {};
  };
  /// The time when TransferBatch `batch` of an op's step begins, or, if `batch` is kNextStep, when
  /// the op's next step begins.
  struct Begin {
    double at_ns;
    size_t op;
    int64_t batch;
    bool operator>(const Begin& o) const {
      return std::tie(at_ns, op, batch) > std::tie(o.at_ns, o.op, o.batch);
    }
  };
  static constexpr int64_t kNextStep = -1;

  void take_begin(std::vector<FinishedCollective>& ended);
  void take_end(const FinishedFlow& flow, std::vector<FinishedCollective>& ended);
  void next_step(size_t op, double at_ns, std::vector<FinishedCollective>& ended);

  const Fabric& fabric_;
  LinkClock clock_;
  std::unordered_map<size_t, Running> running_;
  std::priority_queue<Begin, std::vector<Begin>, std::greater<>> begins_;
  std::vector<FinishedFlow> flows_;  // scratch
};

}  // namespace moe
