// The turns of one arbiter for members whose threads are in this process. Whichever thread makes a
// choice possible makes it, under a lock. Not here: tensors, and communicators.
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
    /// For the watchdog: what a rank waits for that has not posted the op, "" where that is not
    /// known. Called by any thread.
    std::function<std::string(int64_t rank, OpId op)> waits_for = nullptr;
    /// Told of each turn that is no error as it is chosen, under the lock.
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

  /// Who is not through with the turn that is under way, and its op; "" where none is.
  std::string under_way();
  /// What the watchdog finds for all ranks and lanes, as next() does for one of each.
  std::optional<Turn> late();

 private:
  /// An op that a rank posted and others did not, and since when that holds up the arbiter.
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
  std::vector<std::condition_variable> turn_on_;  // by lane of the schedule
  ArbiterState state_;
  Turn turn_;                // where state_ is busy or the choice failed
  std::vector<bool> taken_;  // by rank: has been given the turn
  std::vector<bool> done_;   // by rank: is through with it
  Nanoseconds end_ = 0;  // of the transfer, as members told; then: since when the network is free
  Nanoseconds idle_since_ = 0;          // as the watchdog sees it
  std::vector<int64_t> num_posted_;     // by op: ranks
  std::vector<Nanoseconds> ready_;      // by op: the last rank's
  std::vector<Nanoseconds> posted_at_;  // by rank and op; 0: not yet
  bool aborted_ = false;
};

}  // namespace moe
