// Chooses which ranges of the forward program to cut, and into how many parts: Lancet's dynamic
// programme (MLSys 2024, section 5). T(n) is the least time of the first n groups of ops: T(0) = 0,
// T(n) = min over i < n of (T(i) + min over k of P(i,n,k)), with half-open ranges. The result is
// exact for these P: P(i,n,k) is the event engine's time of the range cut into k parts, and
// P(i,n,1) that of the uncut range. The times themselves are in partition.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/units.h"

namespace moe {

struct RangeChoice {
  size_t begin = 0, end = 0;  // numbers of groups
  int64_t parts = 1;
};

struct RangeProblem {
  size_t num_groups = 0;
  /// Returns the largest end of a range that begins at group `begin`, at least begin + 1 (iota).
  std::function<size_t(size_t begin)> furthest;
  std::vector<int64_t> parts;  // allowed numbers of parts, without 1 (rho)
  /// Returns whether groups [begin, end) contain a transfer to hide; without one they are not cut.
  std::function<bool(size_t begin, size_t end)> has_transfer;
  /// Returns the time P of groups [begin, end); nullopt when they cannot be cut into `parts` (never
  /// for 1).
  std::function<std::optional<Nanoseconds>(size_t begin, size_t end, int64_t parts)> range_ns;
};

struct RangeResult {
  std::vector<RangeChoice> ranges;  // together they cover all groups, in order
  Nanoseconds total_ns = 0;
  int64_t num_asked = 0;  // number of calls of range_ns
};

/// Returns the cover with the least total time; of several equal ones the first found (longer last
/// ranges, fewer parts). Calls range_ns O(groups * iota * parts) times.
RangeResult choose_ranges(const RangeProblem& problem);

/// Forms groups of neighbouring ops that take at least `least_ns` each, and returns the end of each
/// group; the last end is ns.size(). An op with alone = true (one that cannot be cut) is a group of
/// its own, and the ops before it end their group there.
std::vector<size_t> group_ends(std::span<const Nanoseconds> ns, Nanoseconds least_ns,
                               const std::vector<bool>& alone);

}  // namespace moe
