// The arbiters of a step on devices: lanes that choose their next transfer while the step runs
// (schedule/arbiter.h), as one host thread drives them by looking at events. A choice is made where
// the host next looks, so it costs what that costs. The ranks of this process are one member of the
// turns; in a job the other processes' are the others.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/exec/arbiter/lane_arbiter.h"

namespace moe {

class DeviceArbiters {
 public:
  /// What the ranks of this process say and do, all of them together.
  struct Ranks {
    std::function<bool(OpId)> over;                          // on every rank
    std::function<bool(OpId)> begun;                         // on some rank
    std::function<void(OpId, int64_t chunk)> enqueue;        // one chunk
    std::function<bool(OpId, int64_t chunk)> chunk_is_over;  // on every rank
  };

  /// Keeps references to plan and options.
  DeviceArbiters(const Plan& plan, const RunOptions& options, Ranks ranks);

  bool any() const { return !arbiters_.empty(); }
  bool is_mine(LaneId lane) const { return mine_[lane.index()]; }
  /// A step begins or ends, as LaneArbiter says. runs: whether an op does.
  void start_step(int64_t step, const std::function<bool(OpId)>& runs);
  void end_step();
  /// Posts what became ready, tells what is over, and queues the turns that it is given. Returns
  /// whether anything happened. Throws as LaneArbiter::try_next, and what comes as Turn::error.
  bool go_on();
  /// Transfers are posted, and a turn depends on other processes.
  bool awaits_others() const;
  /// Every transfer of the step is over here.
  bool done() const { return left_ == 0; }

 private:
  struct Op {
    OpId id;
    OpId before;  // on a lane that runs in order
    bool posted = false, over = false;
  };
  struct LaneGroup {
    Arbiter lanes;
    std::unique_ptr<LaneArbiter> arbiter;
    std::vector<Op> ops;           // of the step
    std::vector<OpId> announcers;  // of its holds, that have not begun
    std::optional<Turn> in_flight;
  };

  void add_ops(LaneGroup& group, const std::function<bool(OpId)>& runs);
  bool may_post(const LaneGroup& group, const Op& op) const;
  bool report(LaneGroup& group);
  bool take(LaneGroup& group);

  const Plan& plan_;
  const Ranks ranks_;
  const int64_t rank_;  // of the member
  const bool in_job_;
  std::vector<bool> mine_;  // by lane
  std::vector<LaneGroup> arbiters_;
  int64_t step_ = 0;
  size_t left_ = 0;  // ops that are not over
};

}  // namespace moe
