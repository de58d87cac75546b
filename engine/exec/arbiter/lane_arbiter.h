// The turns of one arbiter (schedule/arbiter.h): members post the transfers that are ready on them,
// the next transfer is chosen once for all members, and all members get the same turns in the same
// order. If each member chose its next transfer alone, they would wait for each other in different
// transfers. Implementations: local_arbiter.h for threads of one process, distributed_arbiter.h for
// the processes of a job.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// A turn: one chunk of one op, which all members transfer next.
struct Turn {
  OpId op;
  int64_t chunk = 0;
  /// The time, on the run's clock, since which the op has been ready on all members and the network
  /// free.
  Nanoseconds since = 0;
  /// When set, there is no transfer: the run cannot continue at `op`, for this reason.
  std::exception_ptr error = nullptr;
};

/// An op that has been ready on a member since `since` (run's clock).
struct Ready {
  OpId op;
  Nanoseconds since = 0;
};

class LaneArbiter {
 public:
  virtual ~LaneArbiter() = default;

  /// Begins a step; no thread may be in another function. Collective in a job: it returns on rank 0
  /// before any process posts an op of the step, since common_start() of the run loop is called
  /// after it.
  virtual void start_step() = 0;
  /// Ends a step that all threads of this process have left. On rank 0 of a job, waits until all
  /// ranks have finished the last turn, and throws RunError after the timeout.
  virtual void end_step() = 0;
  /// Posts the ops that became ready on this rank. Ops that become ready at the same time are
  /// posted in one call, so that the next turn is chosen among all of them. Requires: called once
  /// per op, rank and step; on a lane that runs in order, only when the previous op has finished.
  virtual void post(int64_t rank, const std::vector<Ready>& ops) = 0;
  /// Reports that a compute op has begun on a rank. If the schedule has a hold
  /// (schedule/schedule.h) that starts with this op, the hold begins.
  virtual void begun(int64_t rank, OpId op) = 0;
  /// Sleeps until the arbiter has chosen an op of this lane and returns that turn; every member
  /// gets each turn of its lanes once. Two failures are returned as Turn::error, on one rank only:
  /// a policy function that threw, and the watchdog's timeout for an op that some ranks have posted
  /// and others have not. Throws Aborted after abort(), and RunError in a job that failed.
  virtual Turn next(int64_t rank, LaneId lane) = 0;
  /// As next(), but returns nothing where next() would sleep.
  virtual std::optional<Turn> try_next(int64_t rank, LaneId lane) = 0;
  /// Reports that this member has finished its turn, whose transfer ended at `end`. After the last
  /// chunk of an op, it is called only when all ops that thereby became ready on this rank have
  /// been posted.
  virtual void done(int64_t rank, Nanoseconds end) = 0;
  /// Ends all waits of this process. Called by any thread.
  virtual void abort() = 0;
};

/// Returns one LaneArbiter for each arbiter of the schedule, with Policies::choose and
/// options.timeout_s, times the pace if there is one. In a job its members are the ranks of
/// options.processes, otherwise `num_members` members in this process. waits_for(rank, op), which
/// may be null, is for the watchdog's message: it returns what a rank is waiting for that has not
/// posted the op, "" when unknown; any thread calls it. Keeps references to plan and options.
std::vector<std::unique_ptr<LaneArbiter>> make_lane_arbiters(
    const Plan& plan, const RunOptions& options, int64_t num_members,
    const std::function<std::string(int64_t rank, OpId op)>& waits_for);

}  // namespace moe
