// How a thread waits that must look again and again whether another process has done something.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/comm/communicator.h"

namespace moe {

/// A peer that is at work answers within microseconds; who waits for longer leaves its core to
/// compute, for an eighth of what it has waited so far: were sleeps longer, two that wait for each
/// other in turn would find each other asleep every time.
class Backoff {
 public:
  explicit Backoff(Nanoseconds now = clock_ns()) : begin_(now) {}
  /// Between two looks.
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
