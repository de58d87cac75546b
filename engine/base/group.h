// Group: the ranks that take part in one collective. All groups of one collective op have the same
// size and stride, and every rank is in exactly one group. For 8 ranks on 2 nodes, as {size,
// stride}: {4, 1} are the ranks of one node, {2, 4} the ranks with the same place in their nodes,
// {2, 1} pairs of neighbours, {8, 1} all ranks. Collectives are in comm/, their times in network/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace moe {

/// Elements [first, first + n) of a tensor, in flat order.
struct Slice {
  int64_t first = 0, n = 0;
};

struct Group {
  int64_t size = 0;    // number of members; 0 means all ranks and is replaced by resolve()
  int64_t stride = 1;  // difference between the ranks of two successive members
  bool operator==(const Group&) const = default;

  // The functions below need a group that resolve() returned. Rank d is in one group with the ranks
  // that have the same d / (size * stride) and the same d % stride, in ascending order. Groups are
  // numbered by their first members, in ascending order.
  /// The index of `rank` among the members of its group.
  int64_t place(int64_t rank) const { return rank / stride % size; }
  /// The rank at index `place` of the group that contains `rank`.
  int64_t member(int64_t rank, int64_t place) const {
    return rank + (place - this->place(rank)) * stride;
  }
  /// The number of the group that contains `rank`.
  int64_t number(int64_t rank) const { return rank / (size * stride) * stride + rank % stride; }
  /// The first member of group `number`.
  int64_t first(int64_t number) const {
    return number / stride * (size * stride) + number % stride;
  }
  /// Whether ranks `a` and `b` are in the same group.
  bool same(int64_t a, int64_t b) const { return number(a) == number(b); }
  /// The elements per member of a tensor that the members hold together, a slice each; the last
  /// slices have fewer elements where the size does not divide them.
  int64_t slice_length(int64_t elements) const { return (elements + size - 1) / size; }
  /// The slice of the member at `place`.
  Slice slice(int64_t elements, int64_t place) const {
    const int64_t first = std::min(elements, place * slice_length(elements));
    return {first, std::min(slice_length(elements), elements - first)};
  }
};

/// One round of an exchange that a group makes in `of` rounds. The places of the group are divided
/// into `of` blocks of neighbours, and in round `number` block b sends to block b + number and
/// receives from block b - number, modulo `of`. {0, 1} means that all members exchange in one
/// round. The functions need a group that resolve() returned and a round that check() accepted.
struct Round {
  int64_t number = 0;
  int64_t of = 1;
  bool operator==(const Round&) const = default;

  /// Number of members per block.
  int64_t members(const Group& group) const { return group.size / of; }
  /// Number of members, other than itself, to which a member sends in this round.
  int64_t peers(const Group& group) const { return members(group) - (number == 0 ? 1 : 0); }
  /// The first place of the block that the member at `place` sends to.
  int64_t sends_to(const Group& group, int64_t place) const {
    return (place / members(group) + number) % of * members(group);
  }
  /// The first place of the block that the member at `place` receives from.
  int64_t receives_from(const Group& group, int64_t place) const {
    return (place / members(group) + of - number) % of * members(group);
  }
  /// The round in which the data of this round travel back to their senders.
  Round reversed() const { return {(of - number) % of, of}; }
};

/// Throws UserError naming `what` unless `round.of` divides the size of the group and
/// `round.number` is from 0 to `round.of` - 1.
void check(const Round& round, const Group& group, std::string_view what);

/// Returns `group`; size 0 with stride 1 becomes all `num_ranks` ranks. Throws UserError naming
/// `what` and both numbers unless size * stride divides num_ranks.
Group resolve(Group group, int64_t num_ranks, std::string_view what);

}  // namespace moe
