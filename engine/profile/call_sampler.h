// Decides which calls of a measurement become samples. Times come from the caller, so that a test
// needs no clock.
#pragma once

#include <algorithm>
#include <utility>

#include "engine/cost/samples.h"

namespace moe {

/// One timed call. A call is disturbed if its thread lost its core meanwhile. A collective never
/// is: its thread waits for others, and what others use of the cores (exec/results/machine_state.h)
/// is counted in steps of half of a measurement.
struct TimedCall {
  Nanoseconds ns;
  bool disturbed = false;
};

/// A call of which the thread lost more time to other threads than this share, and this time, was
/// disturbed.
constexpr int64_t kShareLost = 50;
constexpr Nanoseconds kMostLost = 2'000;
/// Returns whether a call was disturbed. cpu_ns: the CPU time that its thread used meanwhile.
constexpr bool lost_core(Nanoseconds ns, Nanoseconds cpu_ns) {
  return ns - cpu_ns > ns / kShareLost + kMostLost;
}

/// Leaves out the calls of the warm-up, and disturbed calls for up to kPatience times the time of a
/// measurement; decides when there are enough samples, and of very many calls keeps only some.
class CallSampler {
 public:
  /// Clock rates and caches are in a steady state after this time and so many calls.
  static constexpr Nanoseconds kWarmUp = 4'000'000;
  static constexpr int64_t kWarmUpCalls = 2;
  /// Number of samples to keep of a very short op, taken evenly over the whole measurement.
  static constexpr int64_t kMostSamples = 400;
  static constexpr int64_t kPatience = 4;

  /// The measurement begins at `now` and lasts at least min_time after the warm-up.
  CallSampler(Nanoseconds now, Nanoseconds min_time, int64_t min_samples)
      : min_time_(min_time), min_samples_(min_samples), created_(now), start_(now) {}

  bool done(Nanoseconds now) const {
    return !samples_.ns.empty() && static_cast<int64_t>(samples_.ns.size()) >= min_samples_ &&
           now - start_ >= min_time_;
  }

  /// Adds a call that ended at `now`.
  void add(const TimedCall& call, Nanoseconds now) {
    if (warm_up_calls_ < kWarmUpCalls || now - created_ < kWarmUp) {
      ++warm_up_calls_;
      start_ = now;
      every_ = std::max<int64_t>(1, min_time_ * warm_up_calls_ / (now - created_) / kMostSamples);
      return;
    }
    ++calls_;
    if (call.disturbed) ++lost_;
    if (call.disturbed && now - start_ < kPatience * min_time_) return;
    if (kept_++ % every_ != 0) return;
    samples_.ns.push_back(call.ns);
    samples_.disturbed = samples_.disturbed || call.disturbed;
  }

  Samples take() {
    samples_.lost = calls_ == 0 ? 0 : static_cast<double>(lost_) / static_cast<double>(calls_);
    return std::move(samples_);
  }

 private:
  Nanoseconds min_time_;
  int64_t min_samples_;
  Nanoseconds created_, start_;  // start_: the end of the warm-up
  int64_t warm_up_calls_ = 0, calls_ = 0, lost_ = 0, kept_ = 0, every_ = 1;
  Samples samples_;
};

}  // namespace moe
