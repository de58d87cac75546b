// The arbiters of a pass on devices: lanes that choose their next transfer while the step runs
// (schedule/arbiter.h), as one host thread drives them by looking at events. A choice is made where
// the host next looks, so it costs what that costs; all ranks are this process's, so one choice
// holds for all.
#pragma once

#include <functional>
#include <vector>

#include "engine/plan.h"
#include "engine/schedule/arbiter.h"

namespace moe {

class DeviceTurns {
 public:
  /// What the ranks say and do, all of them together.
  struct Ranks {
    std::function<bool(OpId)> over;                          // on every rank
    std::function<bool(OpId)> begun;                         // on some rank
    std::function<void(OpId, int64_t chunk)> give;           // queues one chunk
    std::function<bool(OpId, int64_t chunk)> chunk_is_over;  // on every rank
  };

  /// choose: as RunOptions::choose. Keeps a reference to the plan.
  DeviceTurns(const Plan& plan, std::function<Choose(LaneId)> choose, Ranks ranks);

  bool any() const { return !lanes_.empty(); }
  bool is_mine(LaneId lane) const { return mine_[lane.index()]; }
  /// A pass begins. runs: whether an op does.
  void start_pass(const std::function<bool(OpId)>& runs);
  /// Notes what is posted and over, chooses, and queues what is chosen. Returns whether anything
  /// happened. Throws RunError as a lane's policy does.
  bool go_on();
  /// Every transfer of the pass is over.
  bool done() const { return left_ == 0; }
  /// An op that is in flight or could not begin; invalid where there is none.
  OpId current() const;

 private:
  struct Op {
    OpId id;
    OpId before;  // on a lane that runs in order
    bool posted = false, over = false;
  };
  struct One {
    ArbiterState state;
    std::vector<Op> ops;
    std::vector<OpId> announcers;  // of its holds, that have not begun
    std::optional<ArbiterState::Transfer> in_flight = {};
  };

  bool may_post(const One& one, const Op& op) const;
  bool note(One& one);

  const Plan& plan_;
  const std::function<Choose(LaneId)> choose_;
  const Ranks ranks_;
  const std::vector<Arbiter> lanes_;  // by arbiter
  std::vector<bool> mine_;            // by lane
  std::vector<One> arbiters_;
  size_t left_ = 0;  // ops that are not over
};

}  // namespace moe
