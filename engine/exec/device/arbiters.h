// Drives the arbiters (schedule/arbiter.h) of a step on devices, for lanes that pick their next
// transfer while the step runs or share a network exclusively. One CPU thread drives the arbiters
// by polling events of the device. It chooses the next transfer when it polls, so up to one polling
// interval late. All ranks of this process together are one member of the turns; in a job, the
// other processes are the other members.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/exec/arbiter/lane_arbiter.h"

namespace moe {

class DeviceArbiters {
 public:
  /// Functions that concern all ranks of this process: states of ops, and the queueing of a chunk.
  struct Ranks {
    std::function<bool(OpId)> over;                          // finished on every rank
    std::function<bool(OpId)> begun;                         // begun on some rank
    std::function<void(OpId, int64_t chunk)> enqueue;        // queues one chunk on all ranks
    std::function<bool(OpId, int64_t chunk)> chunk_is_over;  // finished on every rank
  };

  /// Keeps references to plan and options.
  DeviceArbiters(const Plan& plan, const RunOptions& options, Ranks ranks);

  bool any() const { return !arbiters_.empty(); }
  /// Whether the lane has an arbiter.
  bool is_mine(LaneId lane) const { return mine_[lane.index()]; }
  /// Begin and end a step as LaneArbiter defines it. runs(op) is whether the step executes an op.
  void start_step(int64_t step, const std::function<bool(OpId)>& runs);
  void end_step();
  /// Posts ops that became ready, reports finished turns to the arbiters, and queues the turns that
  /// they give. Returns whether anything happened. Throws as LaneArbiter::try_next, and the error
  /// of a Turn.
  bool go_on();
  /// Whether this process has posted transfers whose turn depends on other processes.
  bool awaits_others() const;
  /// Whether all ops of the step on lanes with an arbiter have finished on this process's ranks.
  bool done() const { return left_ == 0; }

 private:
  struct Op {
    OpId id;
    OpId before;  // the previous op, on a lane that runs in order
    bool posted = false, over = false;
  };
  struct LaneGroup {
    Arbiter lanes;
    std::unique_ptr<LaneArbiter> arbiter;
    std::vector<Op> ops;           // the ops of this step
    std::vector<OpId> announcers;  // ops that start a hold of this arbiter and have not begun
    std::optional<Turn> in_flight;
  };

  void add_ops(LaneGroup& group, const std::function<bool(OpId)>& runs);
  bool may_post(const LaneGroup& group, const Op& op) const;
  bool report(LaneGroup& group);
  bool take(LaneGroup& group);

  const Plan& plan_;
  const Ranks ranks_;
  const int64_t rank_;  // the rank as which this process is a member
  const bool in_job_;
  std::vector<bool> mine_;  // indexed by lane: has an arbiter
  std::vector<LaneGroup> arbiters_;
  int64_t step_ = 0;
  size_t left_ = 0;  // ops that have not finished
};

}  // namespace moe
