// Ceilings of the times and sizes that computations make. What turns a number into a time, and what
// lets a clock go on, checks it here; an error names what takes so long. Nothing overflows in
// silence.
#pragma once

#include <cmath>
#include <string>

#include "engine/base/units.h"

namespace moe {

/// The longest time that is computed with, 104 days: of an op, of a collective, of a whole step.
/// A double holds every one to the nanosecond, and any thousand of them add up in Nanoseconds
/// without a check. Of more times take a TimeSum.
constexpr Nanoseconds kLongestNs = Nanoseconds{1} << 53;

/// The most bytes of a tensor, and of all tensors of a rank together: 8 PiB. Sums and sizes made of
/// them, of any thousand ranks, are in Bytes without a check.
constexpr Bytes kMostBytes = Bytes{1} << 53;

/// Throws UserError: "<what> has 1e+19 bytes; at most 2^53 are allowed: ...".
[[noreturn]] void fail_bytes(const std::string& what, double bytes);
/// Throws it where `bytes` is more.
template <class What>
void check_bytes(double bytes, const What& what) {
  if (!(bytes <= static_cast<double>(kMostBytes))) fail_bytes(what(), bytes);
}

/// Throws UserError: "<what> takes 3.2e+19 s, beyond the clock: at most 104 days are computed
/// with".
[[noreturn]] void fail_time(const std::string& what, double ns);

/// The nearest whole nanosecond. what(): "op 'b0.ln1'", called only where ns is NaN, negative or
/// above kLongestNs, which throws fail_time().
template <class What>
Nanoseconds checked_ns(double ns, const What& what) {
  if (!(ns >= 0 && ns <= static_cast<double>(kLongestNs))) fail_time(what(), ns);
  return std::llround(ns);
}
template <class What>
Nanoseconds checked_ns(Nanoseconds ns, const What& what) {
  if (ns < 0 || ns > kLongestNs) fail_time(what(), static_cast<double>(ns));
  return ns;
}

/// The exact sum of any number of times, which may be longer than one.
class TimeSum {
  __extension__ using Wide = __int128;

 public:
  TimeSum& operator+=(Nanoseconds ns) {
    sum_ += ns;
    return *this;
  }
  TimeSum& operator+=(const TimeSum& other) {
    sum_ += other.sum_;
    return *this;
  }
  /// Throws fail_time() where it is not within 2^62 ns, so that not even twice as much is in
  /// Nanoseconds.
  template <class What>
  Nanoseconds ns(const What& what) const {
    constexpr Wide kMost = Wide{1} << 62;
    if (sum_ < -kMost || sum_ > kMost) fail_time(what(), static_cast<double>(sum_));
    return static_cast<Nanoseconds>(sum_);
  }
  double ms() const { return static_cast<double>(sum_) / 1e6; }
  /// A `count`-th of it, rounded towards 0.
  template <class What>
  Nanoseconds mean(Nanoseconds count, const What& what) const {
    return TimeSum(sum_ / count).ns(what);
  }
  TimeSum() = default;

 private:
  explicit TimeSum(Wide sum) : sum_(sum) {}
  Wide sum_ = 0;
};

/// How long a collective waits for a peer unless the recipe says otherwise. Ours: above the slowest
/// steps of the tests and of the recipes, below a user's patience.
inline constexpr double kWatchdogSeconds = 60;

}  // namespace moe
