// Group: which ranks meet in a collective. The groups of one call have one size and one stride and
// hold every rank once: of 8 ranks on 2 nodes, {4, 1} are the ranks of a node, {2, 4} those with
// the same place in their nodes, {2, 1} pairs of neighbours, {8, 1} all.
#pragma once

#include <cstdint>
#include <string_view>

namespace moe {

struct Group {
  int64_t size = 0;    // members; 0: all ranks, until resolve()
  int64_t stride = 1;  // from one member to the next
  bool operator==(const Group&) const = default;

  // Of resolved groups only. Rank d meets the ranks with the same d / (size * stride) and the same
  // d % stride, in the order of their numbers.
  int64_t place(int64_t rank) const { return rank / stride % size; }
  /// The rank at `place` of the group that `rank` is in.
  int64_t member(int64_t rank, int64_t place) const {
    return rank + (place - this->place(rank)) * stride;
  }
  bool same(int64_t a, int64_t b) const {
    return a / (size * stride) == b / (size * stride) && a % stride == b % stride;
  }
};

/// An exchange of a group in rounds: its places fall into `of` blocks of neighbours, and in round
/// `number` block b sends to block b + number and receives from b - number, modulo `of`. {0, 1}:
/// all members meet at once. Of resolved groups and rounds that check() lets pass.
struct Round {
  int64_t number = 0;
  int64_t of = 1;
  bool operator==(const Round&) const = default;

  /// Members of a block.
  int64_t members(const Group& group) const { return group.size / of; }
  /// Others whom a member sends to.
  int64_t peers(const Group& group) const { return members(group) - (number == 0 ? 1 : 0); }
  /// The first place of the block that the member at `place` sends to, or receives from.
  int64_t sends_to(const Group& group, int64_t place) const {
    return (place / members(group) + number) % of * members(group);
  }
  int64_t receives_from(const Group& group, int64_t place) const {
    return (place / members(group) + of - number) % of * members(group);
  }
  /// The way back.
  Round reversed() const { return {(of - number) % of, of}; }
};

/// Throws UserError naming `what` unless the rounds divide the group and number is one of them.
void check(const Round& round, const Group& group, std::string_view what);

/// The group with all ranks in the place of size 0. Throws UserError naming `what` and both numbers
/// unless size * stride divides num_ranks.
Group resolve(Group group, int64_t num_ranks, std::string_view what);

}  // namespace moe
