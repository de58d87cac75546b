// The pauses of a thread that must check repeatedly whether another process has done something. A
// wait for threads of the same process uses condition variables (in_process.cpp).
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/comm/communicator.h"

namespace moe {

/// A peer that is working answers within microseconds, so the thread first spins. If it waits
/// longer, it sleeps between checks, for an eighth of the time that it has waited so far (10 to
/// 100 us), so that its core is free for compute. With longer sleeps, two threads that wait for
/// each other in turn would find each other asleep every time.
class Backoff {
 public:
  explicit Backoff(Nanoseconds now = clock_ns()) : begin_(now) {}
  /// Called between two checks.
  void rest(Nanoseconds now = clock_ns()) const {
    if (now - begin_ < kSpin) return;
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(std::clamp((now - begin_) / 8, kShortest, kLongest)));
  }

 private:
  static constexpr Nanoseconds kSpin = 30'000, kShortest = 10'000, kLongest = 100'000;
  Nanoseconds begin_;
};

}  // namespace moe
