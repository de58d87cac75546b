// How the threads of a run wait for each other: for ops of the same rank on other lanes, and for
// all threads at the start and end of a step. A waiting thread sleeps (a waiting comm lane must
// leave its core to compute), and throws Aborted when some thread fails. Waiting for other ranks'
// transfers is in comm/ and arbiter/.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/units.h"

namespace moe {

/// Thrown in a waiting thread when another thread has failed; never leaves the executor.
class Aborted : public std::exception {
 public:
  const char* what() const noexcept override { return "another thread failed"; }
};

/// Requests from the operating system that the calling thread runs soon after it wakes, even when
/// all cores are computing, and keeps its core: a comm lane works for microseconds and then waits.
/// With the privilege CAP_SYS_NICE it becomes a real-time thread (SCHED_FIFO) or, where the system
/// allows none, gets the largest share of a core; without it, it only wakes later.
void wake_promptly();

/// Which ops of one rank have finished in an epoch. An epoch is one run of the program, counted
/// from 1.
/// Invariant: what a thread wrote before finish(op) is visible after wait(op).
class Progress {
 public:
  explicit Progress(size_t num_ops) : ops_(num_ops) {}

  /// Marks the op as finished at `now`; does nothing if no op waits for it (`awaited` is false).
  /// Requires: called once per op and epoch.
  void finish(OpId op, uint32_t epoch, Nanoseconds now, bool awaited);
  /// Sleeps until the op has finished, and returns the time at which it ended. Throws Aborted.
  /// Requires: finish(op) gets `awaited`.
  Nanoseconds wait(OpId op, uint32_t epoch);
  bool over(OpId op, uint32_t epoch) const {
    return ops_[op.index()].epoch.load(std::memory_order_acquire) == epoch;
  }
  void abort();

 private:
  struct State {
    std::atomic<uint32_t> epoch{0};
    Nanoseconds end = 0;
  };
  std::vector<State> ops_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
};

/// A barrier for a fixed number of threads that can be aborted.
class Rendezvous {
 public:
  /// `on_last` is run by the last thread to arrive, before any thread leaves.
  explicit Rendezvous(int64_t num_threads, std::function<void()> on_last = nullptr)
      : num_threads_(num_threads), on_last_(std::move(on_last)) {}

  /// Returns when all threads have arrived. Throws Aborted.
  void arrive();
  void abort();

 private:
  const int64_t num_threads_;
  const std::function<void()> on_last_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t arrived_ = 0;
  uint64_t turn_ = 0;
  bool aborted_ = false;
};

}  // namespace moe
