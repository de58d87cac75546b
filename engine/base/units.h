// Units of time and size. Times of ops and steps are integer nanoseconds; network/ also computes
// with unrounded ones (double). The suffix of a name gives its unit (_ns, _ms, _s, _bytes, _flops,
// _bytes_per_s). The limits of times and sizes are in limits.h.
#pragma once

#include <cmath>
#include <cstdint>

namespace moe {

using Nanoseconds = int64_t;
using Bytes = int64_t;

constexpr double kNsPerSecond = 1e9;

/// Returns the time for `amount` (flops or bytes) at a rate of `per_second`, rounded up to a whole
/// nanosecond. Requires: per_second > 0.
inline Nanoseconds duration_ns(double amount, double per_second) {
  return static_cast<Nanoseconds>(std::ceil(amount * kNsPerSecond / per_second));
}

inline double to_ms(Nanoseconds ns) {
  return static_cast<double>(ns) / 1e6;
}

}  // namespace moe
