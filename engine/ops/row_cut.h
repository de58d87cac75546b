// RowCut: which rows of slots belong to an op that is one of several parts along the rows in use
// (attr cut) or one round of an exchange (attrs rounds, round). Part p of r has, of the n rows that
// one source rank has for one slot, the rows from floor((n p + o) / r) to floor((n (p + 1) + o) /
// r), where o = (slot + source) mod r, so that single rows spread over the parts. The parts need no
// counts of their own and no exchange; nested cuts narrow the rows one after the other. The sender
// and the receiver of a row compute the same part. A part of the batch (attr share) is not a
// RowCut: its rows are between two row ends that the gate counts.
#pragma once

#include <string>
#include <vector>

#include "engine/base/group.h"
#include "engine/graph/graph.h"

namespace moe::ops {

/// Rows [begin, end) of a block.
struct Rows {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

class RowCut {
 public:
  /// Reads attr cut, "p/r" or several of them ("0/2 2/3": part 2 of 3 of part 0 of 2), the outer
  /// first. Throws UserError naming the op for any other text.
  explicit RowCut(const Op& op);

  /// The part's share of all rows, 0..1.
  double share() const;
  /// Returns the part's rows of `rows`, which source rank `source` has for slot `slot`. Slots are
  /// numbered over all devices of the group, sources by their place in the group; only the sum of
  /// the two numbers matters.
  Rows of(Rows rows, int64_t slot_and_source) const;

 private:
  struct Part {
    int64_t number, of;
  };
  std::vector<Part> parts_;
};

/// Whether the op works on the rows of one part or one round, of counted rows.
bool is_row_part(const Graph& graph, const Op& op);
/// Returns the number of rows in use in each block of the op's output 0. Requires: is_row_part().
TensorId counts_of_rows(const Graph& graph, const Op& op);
/// Returns attr cut of part `part` of `parts` of an op that may be a part already.
std::string nested_cut(const Op& op, int64_t part, int64_t parts);
/// Returns those attributes of an op on rows at the experts that its gradient must have, too: which
/// rows it computes (rows, loose, occupancy) and of which part or round (cut, rounds, group).
Attrs row_attrs(const Op& op);

/// Returns RowUse::cut, round and group of an op that is a part along the rows in use, or a round.
RowUse cut_of(const Op& op);

/// The rows of one part or round on the experts' side, [slots of a device, sources].
class ExpertRowCut {
 public:
  /// `slots`: slots per device. Requires: `rank` is a rank of the graph.
  ExpertRowCut(const Graph& graph, const Op& op, int64_t rank, int64_t slots);
  /// Returns the part's rows of `rows` in slot `slot` of this device; none if the source does not
  /// send in this round.
  Rows of(Rows rows, int64_t slot, int64_t source) const;

 private:
  RowCut cut_;
  int64_t first_slot_ = 0, first_source_ = 0, last_source_ = 0;
};

}  // namespace moe::ops
