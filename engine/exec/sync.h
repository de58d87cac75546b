// How the threads of a run wait for each other: the ops of one rank across lanes, and all threads
// at the ends of a step. Waits sleep (a waiting comm lane must leave its core to compute) and end
// with Aborted when some thread fails.
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

/// Ends a thread's work because another thread failed; never leaves the executor.
class Aborted : public std::exception {
 public:
  const char* what() const noexcept override { return "another thread failed"; }
};

/// Asks the system to let the calling thread run soon after it wakes, also where all cores compute:
/// a comm lane works for microseconds and then waits. Asks for no privilege; a system that refuses
/// only wakes it later.
void wake_promptly();

/// Which ops of one rank are over. An epoch is a run of the program, from 1 on.
/// Invariant: what a thread wrote before finish(op) is seen after wait(op).
class Progress {
 public:
  explicit Progress(size_t num_ops) : ops_(num_ops) {}

  /// Requires: called once per op and epoch. `awaited`: some op of another lane waits for it.
  void finish(OpId op, uint32_t epoch, Nanoseconds now, bool awaited);
  /// Sleeps until the op is over; returns when it ended. Throws Aborted.
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

/// A barrier of a fixed number of threads that can be aborted.
class Rendezvous {
 public:
  /// on_last: run by the last thread to come, before anybody leaves.
  explicit Rendezvous(int64_t num_threads, std::function<void()> on_last = nullptr)
      : num_threads_(num_threads), on_last_(std::move(on_last)) {}

  /// Returns when all have come. Throws Aborted.
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
