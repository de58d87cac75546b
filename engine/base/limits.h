// Upper limits of computed times and sizes, so that nothing overflows silently. Code that turns a
// number into a time, or that advances a clock, checks the result with the functions here; the
// error names the op, collective or step that takes too long. The limits of Lua states (memory,
// time) are in bindings/host/limits.h.
#pragma once

#include <cmath>
#include <string>

#include "engine/base/units.h"

namespace moe {

/// The longest time of an op, a collective or a whole step: 2^53 ns, 104 days. A double holds every
/// such time exactly, and up to a thousand of them can be added in Nanoseconds without a check. For
/// sums of more than a thousand times use TimeSum.
constexpr Nanoseconds kLongestNs = Nanoseconds{1} << 53;

/// The most bytes of one tensor, and of all tensors of a rank together: 2^53 bytes, 8 PiB. Sums of
/// such sizes over up to a thousand ranks fit into Bytes without a check.
constexpr Bytes kMostBytes = Bytes{1} << 53;

/// Throws UserError: "<what> has 1e+19 bytes; at most 2^53 are allowed: ...".
[[noreturn]] void fail_bytes(const std::string& what, double bytes);
/// Throws UserError by fail_bytes() where `bytes` is above kMostBytes or NaN. what() names what has
/// these bytes; it is called only for the error.
template <class What>
void check_bytes(double bytes, const What& what) {
  if (!(bytes <= static_cast<double>(kMostBytes))) fail_bytes(what(), bytes);
}

/// Throws UserError: "<what> takes 3.2e+19 s, which is beyond the clock: at most 104 days are
/// allowed".
[[noreturn]] void fail_time(const std::string& what, double ns);

/// Returns `ns` rounded to a whole nanosecond. Throws UserError by fail_time() where `ns` is NaN,
/// negative or above kLongestNs. what() ("op 'b0.ln1'") is called only for the error.
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

/// The exact sum of any number of times; the sum may exceed kLongestNs.
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
  /// Returns the sum of all times added so far. Throws UserError by fail_time() where its absolute
  /// value exceeds 2^62 ns, half of the range of Nanoseconds; what() names the sum in the error.
  template <class What>
  Nanoseconds ns(const What& what) const {
    constexpr Wide kMost = Wide{1} << 62;
    if (sum_ < -kMost || sum_ > kMost) fail_time(what(), static_cast<double>(sum_));
    return static_cast<Nanoseconds>(sum_);
  }
  double ms() const { return static_cast<double>(sum_) / 1e6; }
  /// Returns the sum divided by `count`, rounded towards 0. Throws as ns() does.
  template <class What>
  Nanoseconds mean(Nanoseconds count, const What& what) const {
    return TimeSum(sum_ / count).ns(what);
  }
  TimeSum() = default;

 private:
  explicit TimeSum(Wide sum) : sum_(sum) {}
  Wide sum_ = 0;
};

/// Seconds that a collective waits for a peer unless the recipe gives another number. Our choice:
/// longer than the slowest steps of tests and recipes, shorter than a user's patience.
inline constexpr double kWatchdogSeconds = 60;

}  // namespace moe
