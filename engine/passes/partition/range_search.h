// Which ranges of the forward program to cut, and into how many parts: Lancet's dynamic programme
// (MLSys 2024, section 5): T(0) = 0, T(n) = min over i < n of T(i) + min over k of P(i,n,k), over
// groups of ops, with half-open ranges. Exact: a P is the event engine's time of the range as it
// would really be cut, and P(i,n,1) of the range as it is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/units.h"

namespace moe {

struct RangeChoice {
  size_t begin = 0, end = 0;  // groups
  int64_t parts = 1;
};

struct RangeProblem {
  size_t num_groups = 0;
  /// The largest end of a range that begins at this group, at least begin + 1 (iota).
  std::function<size_t(size_t begin)> furthest;
  std::vector<int64_t> parts;  // allowed numbers of parts, without 1 (rho)
  /// Whether groups [begin, end) hold a transfer to hide; without one they are left whole.
  std::function<bool(size_t begin, size_t end)> has_transfer;
  /// P of groups [begin, end); nothing when they cannot be cut so. Always there for 1 part.
  std::function<std::optional<Nanoseconds>(size_t begin, size_t end, int64_t parts)> range_ns;
};

struct RangeResult {
  std::vector<RangeChoice> ranges;  // cover all groups in order
  Nanoseconds total_ns = 0;
  int64_t num_asked = 0;  // how often range_ns was asked
};

/// The cover with the least total; of equal ones the first found (longer last ranges, fewer parts).
/// O(groups * iota * parts) questions.
RangeResult choose_ranges(const RangeProblem& problem);

/// Groups of neighbouring ops of at least `least_ns` each: their ends, the last being ns.size(). An
/// op that is alone (one that cannot be cut) is a group of its own, and so is what stands before
/// it.
std::vector<size_t> group_ends(std::span<const Nanoseconds> ns, Nanoseconds least_ns,
                               const std::vector<bool>& alone);

}  // namespace moe
