// The turns of one arbiter whose members' threads are all in this process. When a call makes it
// possible to choose the next turn, its thread chooses it, under a lock. Not here: tensors, and
// communicators.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "engine/base/limits.h"
#include "engine/exec/arbiter/lane_arbiter.h"
#include "engine/schedule/arbiter.h"

namespace moe {

class LocalArbiter final : public LaneArbiter {
 public:
  struct Options {
    int64_t num_ranks = 1;
    double timeout_s = kWatchdogSeconds;
    std::function<Choose(LaneId)> choose = nullptr;
    /// For the watchdog's message: returns what a rank is waiting for that has not posted the op,
    /// "" when unknown. Called by any thread.
    std::function<std::string(int64_t rank, OpId op)> waits_for = nullptr;
    /// Called for each turn that is not an error, when it is chosen, under the lock.
    std::function<void(const Turn&)> chosen = nullptr;
  };

  /// Keeps references to graph and schedule.
  LocalArbiter(const Graph& graph, const Schedule& schedule, Arbiter lanes, Options options);

  void start_step() override;
  void end_step() override;
  void post(int64_t rank, const std::vector<Ready>& ops) override;
  void begun(int64_t rank, OpId op) override;
  Turn next(int64_t rank, LaneId lane) override;
  std::optional<Turn> try_next(int64_t rank, LaneId lane) override;
  void done(int64_t rank, Nanoseconds end) override;
  void abort() override;

  /// Returns a text about the current turn, "ranks 1, 2 did not finish op t0"; "" when there is no
  /// turn.
  std::string under_way();
  /// The watchdog's check over all ranks and lanes: returns an error turn for the op that has
  /// waited longest, if some ranks have posted it, others have not, and it has waited longer than
  /// the timeout. An op waits from its first post or the end of the last turn, whichever is later;
  /// while a turn runs, nothing is returned (under_way() says who has not finished it). next()
  /// makes this check for the posts of its rank on its lane.
  std::optional<Turn> late();

 private:
  /// An op that some ranks have posted and others have not, and since when the arbiter has been
  /// waiting for it.
  struct OverduePost {
    OpId op;
    Nanoseconds since;
  };

  Nanoseconds& posted_at(int64_t rank, OpId op) {
    return posted_at_[static_cast<size_t>(rank) * num_posted_.size() + op.index()];
  }
  bool is_for(int64_t rank, LaneId lane) const;
  void choose();
  Nanoseconds first_post(OpId op);
  OverduePost overdue(int64_t rank, LaneId lane);
  Turn missing(OpId op);

  const Graph& graph_;
  const Schedule& schedule_;
  const Options options_;
  const Nanoseconds timeout_;
  std::mutex mutex_;
  std::vector<std::condition_variable> turn_on_;  // indexed by lane of the schedule
  ArbiterState state_;
  Turn turn_;                // valid when state_ is busy, or with an error when a policy threw
  std::vector<bool> taken_;  // indexed by rank: has been given the turn
  std::vector<bool> done_;   // indexed by rank: has finished the turn
  /// While a turn runs, the latest end of the transfer that members passed to done(); afterwards
  /// the time since which the network has been free.
  Nanoseconds end_ = 0;
  Nanoseconds idle_since_ = 0;          // start of the current wait, for the watchdog
  std::vector<int64_t> num_posted_;     // indexed by op: ranks that have posted it
  std::vector<Nanoseconds> ready_;      // indexed by op: the latest time at which a rank was ready
  std::vector<Nanoseconds> posted_at_;  // indexed by rank and op; 0: not posted yet
  bool aborted_ = false;
};

}  // namespace moe
