// The rows of sequences that a rank of a group over tp and cp has.
#pragma once

#include "engine/ops/rules.h"

namespace moe::ops {

/// The rows of the member at `place` of the op's group, along an axis of `all` rows: its parts of
/// 2 n, for attr context = n above 1, of which those of the ranks with the same parts have a slice
/// each.
struct OwnRows {
  OwnRows(const Graph& g, const Op& op, int64_t all, int64_t place_in_group)
      : context(expect_context(g, op)), place(place_in_group) {
    const Group group = group_of(g, op);
    sharing = group.size / context;
    half = all / context / (context > 1 ? 2 : 1);
    own = all / group.size;
  }
  /// The row of all that is own row i.
  int64_t at(int64_t i) const {
    const int64_t row = place % sharing * own + i;  // among those of its parts
    const int64_t number = place / sharing;
    if (context == 1) return row;
    const int64_t part = row < half ? number : 2 * context - 1 - number;
    return part * half + row % half;
  }
  int64_t context, sharing, place, half, own;
};

}  // namespace moe::ops
