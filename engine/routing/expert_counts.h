// ExpertCounts: the load of one MoE layer and step, that is how many choices of each source rank go
// to each expert. Gates count it, routing models return it, and placements are planned from it.
// Which slot a choice takes is in gate.h, not here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "engine/base/group.h"

namespace moe {

struct ExpertCounts {
  int64_t sources = 0, experts = 0;
  std::vector<int64_t> rows;  // [sources, experts]; from a routing model dropped choices included

  ExpertCounts() = default;
  /// Sets all counts to 0. Throws RunError naming the sizes when there is not enough memory.
  ExpertCounts(int64_t num_sources, int64_t num_experts);

  int64_t& at(int64_t source, int64_t expert) {
    return rows[static_cast<size_t>(source * experts + expert)];
  }
  int64_t at(int64_t source, int64_t expert) const {
    return rows[static_cast<size_t>(source * experts + expert)];
  }
  int64_t of_expert(int64_t expert) const {
    int64_t sum = 0;
    for (int64_t s = 0; s < sources; ++s) sum += at(s, expert);
    return sum;
  }
  int64_t total() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }
  bool operator==(const ExpertCounts&) const = default;
};

/// Returns the counts of the members of the group that contains `rank`: [size of the group,
/// experts]. Requires: `all` has all ranks.
ExpertCounts of_group(const ExpertCounts& all, const Group& group, int64_t rank);
/// Returns the mean over all groups, rounded up: what the ranks at each place of their groups have
/// for each expert. Requires: `all` has all ranks.
ExpertCounts mean_of_groups(const ExpertCounts& all, const Group& group);

}  // namespace moe
