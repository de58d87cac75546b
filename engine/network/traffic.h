// Collectives that move on the links of a fabric at the same time, step after step: the event loop
// between a LinkClock and the steps of collective_steps.h. Times are not rounded. Who is alone, and
// when to begin, is the Wire's to say.
#pragma once

#include <cstddef>
#include <queue>
#include <unordered_map>
#include <vector>

#include "engine/network/collective_steps.h"

namespace moe {

/// A collective as it was asked for. Not to be copied: `collective` refers to `op`.
struct Order {
  Order(const Cluster& cluster, const Fabric& fabric, NetworkOp network_op, Share share,
        double begin, double stretch);
  Order(const Order&) = delete;

  const NetworkOp op;
  const CollectiveSteps collective;
  const double begin_ns;
  const double scale;
  const double first_step_ns;
};

/// A collective that ended.
struct FinishedCollective {
  size_t op;
  double end_ns;
  std::vector<double> rank_end_ns;  // by seen device
};

class Traffic {
 public:
  /// The fabric outlives it.
  Traffic(const Fabric& fabric, const NetworkOptions& options);

  /// The op takes its first step at order.first_step_ns, or now if that is over; the order outlives
  /// its end. alone: nothing else will be here until it ends.
  void begin(size_t op, const Order& order, bool alone);
  bool empty() const { return running_.empty(); }
  /// When something next happens; infinity when nothing does.
  double next_ns();
  /// False for an op that is not here.
  bool is_at_last_step(size_t op) const;
  /// On to next_ns(), which is finite. Appends what ended.
  void step(std::vector<FinishedCollective>& ended);
  /// As LinkClock has it.
  std::vector<LinkUse> take_use();

 private:
  struct Running {
    const Order* order;
    bool alone;
    int64_t next_step = 0;
    size_t unfinished = 0;  // flows of the step
    Step step = {};
    std::vector<double> rank_end_ns = {};
  };
  /// Batch `batch` of an op's step begins; or the next step does.
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
