// Grid: the ranks of one pipeline rank, folded in two ways, as Megatron-Core's parallel folding
// (Liu et al. 2025) does: for attention and dense layers into {tp, cp, dp}, for experts into {etp,
// ep, edp}. A run of adjacent axes of a fold is a Group (group.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/base/group.h"

namespace moe {

/// Axes of the dense fold, then those of the fold of experts, each from the innermost outward:
/// ranks that follow each other differ in the first axis of a fold.
enum class Axis : uint8_t { kTp, kCp, kDp, kEtp, kEp, kEdp };

/// Who holds a parameter, and so its gradient and its states.
struct Held {
  /// The first axis of its shape is experts, which are spread over kEp; otherwise it is of a dense
  /// layer.
  bool moe = false;
  int8_t split = -1;  // the axis of its shape that tp (of experts: etp) splits; -1: none
  /// The split axis is this number of blocks of one length, such as q, k and v in one matrix; a
  /// rank holds a part of each.
  int8_t blocks = 1;
  /// Neighbouring ranks that hold the same part: of tp, such as a head of k where tp is above their
  /// number, or of etp, where it splits no axis; their gradients of experts are equal already.
  int8_t same = 1;
  bool operator==(const Held&) const = default;
};

/// The products of both folds are the number of ranks.
struct Grid {
  std::array<int64_t, 6> sizes = {1, 1, 1, 1, 1, 1};  // indexed by Axis

  int64_t size(Axis axis) const { return sizes[static_cast<size_t>(axis)]; }
  /// Returns the group of the ranks that differ in the axes from `first` to `last` only. Requires:
  /// both are of one fold, and `last` is not inside `first`.
  Group over(Axis first, Axis last) const {
    constexpr auto kOfFold = static_cast<size_t>(Axis::kEtp);
    const auto from = static_cast<size_t>(first), to = static_cast<size_t>(last);
    Group group = {1, 1};
    for (size_t axis = from - from % kOfFold; axis <= to; ++axis) {
      (axis < from ? group.stride : group.size) *= sizes[axis];
    }
    return group;
  }
  Group over(Axis axis) const { return over(axis, axis); }
};

/// The parts of the axis that is split.
inline int64_t cuts(const Grid& grid, const Held& held) {
  return held.split < 0 ? 1 : grid.size(held.moe ? Axis::kEtp : Axis::kTp) / held.same;
}

/// The parts of such a tensor, of which consecutive ranks, or `held.same` ranks, hold one each; the
/// parts of an axis follow each other.
inline int64_t parts(const Grid& grid, const Held& held) {
  return cuts(grid, held) * (held.moe ? grid.size(Axis::kEp) : 1);
}

/// Returns the group of the ranks that hold the same part of such a parameter, over which its
/// gradient is summed, after the sum over `held.same` neighbours of tp; its size is 1 where no
/// other rank holds the part.
inline Group copies(const Grid& grid, const Held& held) {
  if (held.moe) return grid.over(Axis::kEdp);
  return grid.over(held.split < 0 ? Axis::kTp : Axis::kCp, Axis::kDp);
}

}  // namespace moe
