// How a thread waits that must look again and again whether another process has done something.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/comm/communicator.h"

namespace moe {

/// A peer that is at work answers within microseconds; who waits for longer leaves its core to
/// compute, and looks less and less often.
class Naps {
 public:
  explicit Naps(Nanoseconds now = clock_ns()) : begin_(now) {}
  /// Between two looks.
  void rest(Nanoseconds now = clock_ns()) {
    if (now - begin_ < kSpin) return;
    std::this_thread::sleep_for(std::chrono::nanoseconds(length_));
    length_ = std::min(2 * length_, kLongest);
  }

 private:
  static constexpr Nanoseconds kSpin = 30'000, kShortest = 10'000, kLongest = 100'000;
  Nanoseconds begin_, length_ = kShortest;
};

}  // namespace moe
