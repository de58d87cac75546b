#include "engine/passes/partition/range_search.h"

#include <algorithm>
#include <limits>

#include "engine/base/errors.h"
#include "engine/base/limits.h"

namespace moe {

RangeResult choose_ranges(const RangeProblem& problem) {
  constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
  RangeResult result;
  // T(n) (range_search.h), the least time of the first n groups, indexed by n.
  std::vector<Nanoseconds> best(problem.num_groups + 1, kNever);
  // The last of the ranges whose times add up to T(n), indexed by n.
  std::vector<RangeChoice> last(problem.num_groups + 1);
  best[0] = 0;
  for (size_t begin = 0; begin < problem.num_groups; ++begin) {
    MOE_CHECK(best[begin] != kNever,
              "choose_ranges: no ranges cover the first {} groups of ops; RangeProblem::range_ns "
              "must return a time for every single group with parts = 1",
              begin);
    const auto offer = [&](size_t end, int64_t parts) {
      ++result.num_asked;
      const std::optional<Nanoseconds> ns = problem.range_ns(begin, end, parts);
      if (ns && best[begin] + *ns < best[end]) {
        best[end] = checked_ns(best[begin] + *ns, [] { return "the forward, as it is cut,"; });
        last[end] = {begin, end, parts};
      }
      return ns.has_value();
    };
    const size_t furthest = std::min(problem.furthest(begin), problem.num_groups);
    bool can_cut = true;
    for (size_t end = begin + 1; end <= furthest; ++end) {
      offer(end, 1);
      if (!problem.has_transfer(begin, end)) continue;
      // A range that cannot be cut can be cut neither when it is longer nor into more parts.
      bool any = false;
      for (const int64_t parts : problem.parts) {
        if (!can_cut || !offer(end, parts)) break;
        any = true;
      }
      can_cut = any;
    }
  }
  result.total_ns = best[problem.num_groups];
  for (size_t end = problem.num_groups; end > 0; end = last[end].begin) {
    result.ranges.push_back(last[end]);
  }
  std::reverse(result.ranges.begin(), result.ranges.end());
  return result;
}

std::vector<size_t> group_ends(std::span<const Nanoseconds> ns, Nanoseconds least_ns,
                               const std::vector<bool>& alone) {
  std::vector<size_t> ends;
  Nanoseconds sum = 0;
  for (size_t i = 0; i < ns.size(); ++i) {
    sum += ns[i];
    const bool last = i + 1 == ns.size() || alone[i] || alone[i + 1];
    if (sum < least_ns && !last) continue;
    ends.push_back(i + 1);
    sum = 0;
  }
  return ends;
}

}  // namespace moe
