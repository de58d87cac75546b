// Arbitration: the choices of one arbiter (schedule/arbiter.h) made for threads. Ranks post ops
// when they become ready; whichever thread makes a choice possible makes it, under a lock, and all
// members get the same turns one after another. Were each rank to choose alone, members would wait
// for each other in different transfers. Knows no tensors, and no communicator.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "engine/schedule/arbiter.h"

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

class Arbitration {
 public:
  struct Options {
    int64_t num_ranks = 1;
    double timeout_s = 30;  // watchdog
    std::function<Choose(LaneId)> choose = nullptr;
    /// For the watchdog: what a rank waits for that has not posted the op. Called by any thread.
    std::function<std::string(int64_t rank, OpId op)> waits_for = nullptr;
  };

  /// Keeps references to graph and schedule.
  Arbitration(const Graph& graph, const Schedule& schedule, Arbiter lanes, Options options);

  /// A pass begins or follows one of which every turn is done; no thread is in another function.
  void start_pass();
  /// The rank is ready for an op of these lanes since `ready` (run's clock). Requires: once an op,
  /// rank and pass; on a lane that runs in order, when the op before it is over.
  void post(int64_t rank, OpId op, Nanoseconds ready);
  /// A compute op begins on some rank: holds.
  void begun(OpId op);
  /// Sleeps until the arbiter has chosen an op of this lane and returns it; every member's thread
  /// of the lane gets each such turn once. A failed choice, or the watchdog's finding that another
  /// rank has not posted in time what this one has, comes as Turn::error. Throws Aborted.
  Turn next(int64_t rank, LaneId lane);
  /// This member is through with the turn that it was given; the transfer ended at `end`. After an
  /// op's last chunk it is called when all that became ready on this rank is posted.
  void done(int64_t rank, Nanoseconds end);
  void abort();

 private:
  /// An op that this rank posted and others did not, and since when that holds up the arbiter.
  struct Overdue {
    OpId op;
    Nanoseconds since;
  };

  Nanoseconds& posted_at(int64_t rank, OpId op) {
    return posted_at_[static_cast<size_t>(rank) * num_posted_.size() + op.index()];
  }
  bool is_for(int64_t rank, LaneId lane) const;
  void choose();
  Overdue overdue(int64_t rank, LaneId lane);
  std::string missing(OpId op);

  const Graph& graph_;
  const Schedule& schedule_;
  const Options options_;
  const Nanoseconds timeout_;
  std::mutex mutex_;
  std::vector<std::condition_variable> turn_on_;  // by lane of the schedule
  ArbiterState state_;
  Turn turn_;                // where state_ is busy or the choice failed
  std::vector<bool> taken_;  // by rank: has been given the turn
  int64_t num_done_ = 0;     // members that are through with it
  Nanoseconds end_ = 0;  // of the transfer, as members told; then: since when the network is free
  Nanoseconds idle_since_ = 0;          // as the watchdog sees it
  std::vector<int64_t> num_posted_;     // by op: ranks
  std::vector<Nanoseconds> ready_;      // by op: the last rank's
  std::vector<Nanoseconds> posted_at_;  // by rank and op; 0: not yet
  bool aborted_ = false;
};

}  // namespace moe
