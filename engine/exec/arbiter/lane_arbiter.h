// The turns of one arbiter (schedule/arbiter.h): members tell which transfers became ready, one
// choice is made for all of them, and all get the same turns one after another. Were each to choose
// alone, members would wait for each other in different transfers. Who chooses, and how the members
// hear of it, is the implementation's: threads of one process (local_arbiter.h), or the processes
// of a job (distributed_arbiter.h).
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// One chunk of one op, for all members.
struct Turn {
  OpId op;
  int64_t chunk = 0;
  /// Since when, on the run's clock, all members have posted the op and the network was free.
  Nanoseconds since = 0;
  /// Instead of a transfer: why the run cannot go on, at the op.
  std::exception_ptr error = nullptr;
};

/// An op that is ready on a member since then (run's clock).
struct Ready {
  OpId op;
  Nanoseconds since = 0;
};

class LaneArbiter {
 public:
  virtual ~LaneArbiter() = default;

  /// A step begins; no thread is in another function. In a job collective, and it returns on rank 0
  /// before any process posts for the step: common_start() of the run loop follows it.
  virtual void start_step() = 0;
  /// All threads of this process have left the step. Returns when every turn is done.
  virtual void end_step() = 0;
  /// These became ready on this rank: all of them, where several do at the same time, so that the
  /// choice knows of each. Requires: once per op, rank and step; on a lane that runs in order, when
  /// the op before it is over.
  virtual void post(int64_t rank, const std::vector<Ready>& ops) = 0;
  /// A compute op begins on some rank: holds.
  virtual void begun(int64_t rank, OpId op) = 0;
  /// Sleeps until the arbiter has chosen an op of this lane and returns it; every member is given
  /// each such turn once. A failed choice, or the watchdog's finding that a rank has not posted in
  /// time what another one has, comes as Turn::error, to one rank. Throws Aborted, and in a job
  /// that failed RunError.
  virtual Turn next(int64_t rank, LaneId lane) = 0;
  /// The same without sleep: nothing where next() would sleep.
  virtual std::optional<Turn> try_next(int64_t rank, LaneId lane) = 0;
  /// This member is through with the turn that it was given; the transfer ended at `end`. After an
  /// op's last chunk it is called when all that became ready on this rank is posted.
  virtual void done(int64_t rank, Nanoseconds end) = 0;
  /// Ends all waits of this process. Any thread.
  virtual void abort() = 0;
};

/// One for each arbiter of the schedule, by Policies::choose and options.timeout_s; in a job (of
/// options.processes) among its ranks, otherwise of these many members in this process. waits_for:
/// for the watchdog, what a rank waits for that has not posted the op, "" where that is not known;
/// called by any thread; may be null. Keeps references to plan and options.
std::vector<std::unique_ptr<LaneArbiter>> make_lane_arbiters(
    const Plan& plan, const RunOptions& options, int64_t num_members,
    const std::function<std::string(int64_t rank, OpId op)>& waits_for);

}  // namespace moe
