// Cuts the sequence "all-to-all, experts, all-to-all" of an MoE layer into parts. The passes
// capacity_pipeline, pipemoe, micro_ops and fastermoe_pipeline share these functions. Padded slots
// are cut along the capacity axis; where all-to-alls carry counted rows (irregular_a2a,
// placements), the rows in use are cut (ops/row_cut.h), which adds no exchange. A part can be cut
// again. The choice of the degree is not here; each pass makes its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace moe {

/// The ops from one all-to-all with attr to = "expert" to the all-to-all back, in program order.
struct CapacityChain {
  std::vector<OpId> ops;
  int64_t capacity = 0;  // slots per expert and source rank: C in the shape [E, C, d]
  bool counted = false;  // its all-to-alls carry counted rows
};

/// Returns the chains of all MoE layers in program order; none when the graph has no all-to-all of
/// rows. Throws UserError naming the stage when experts count the rows of padded all-to-alls
/// (used_rows without irregular_a2a), when the rows travel in steps (after hierarchical_a2a), or
/// when the output of an op of a chain has no reader or several.
std::vector<CapacityChain> capacity_chains(const Graph& graph, const std::string& stage);

/// Returns the bytes of rows that a rank sends in the chain's first all-to-all: of all slots, or
/// where rows are counted of its tokens' choices, if these are fewer. In a part, its share of them.
double bytes_sent(const Graph& graph, const CapacityChain& chain);

/// Cuts the chain into `degree` parts of as many slots, or of as many rows in use, except that
/// parts may differ by one slot or row; returns the slots of each part (the most rows of a source
/// in it, where rows are counted). In the program the transfers are in the order D_1..D_r, C_1..C_r
/// (to the experts, then back). Requires: 1 < degree <= capacity.
std::vector<int64_t> cut_capacity(Graph& graph, const CapacityChain& chain, int64_t degree);

/// Returns what cut_capacity() did, for the log: "capacity 10 cut into parts of 5, 5", with the
/// verb "cut into", or "rows in use cut into 2 parts".
std::string cut_text(const CapacityChain& chain, const std::vector<int64_t>& sizes,
                     std::string_view verb);

/// Replaces a chain of counted rows by one chain per entry of `parts`, whose ops have these
/// attributes in addition: attr cut for a part, attrs rounds and round for a round.
void cut_rows(Graph& graph, const CapacityChain& chain, const std::vector<Attrs>& parts);

}  // namespace moe
