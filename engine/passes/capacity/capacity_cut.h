// Cuts the sequence "all-to-all, experts, all-to-all" of an MoE layer into parts along the capacity
// axis. The passes capacity_pipeline, pipemoe, micro_ops and fastermoe_pipeline share these
// functions.
// Invariant: a sequence is cut only while its rows are padded slots, not counted rows.
// The choice of the degree is not here; each pass makes its own.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace moe {

/// The ops from one all-to-all with attr to = "expert" to the all-to-all back, in program order.
struct CapacityChain {
  std::vector<OpId> ops;
  int64_t capacity = 0;  // slots per expert and source rank: C in the shape [E, C, d]
};

/// Returns the chains of all MoE layers in program order; none when the graph has no all-to-all of
/// rows. Throws UserError naming the stage when the rows of a part would have to be counted (after
/// irregular_a2a or used_rows), when the rows travel in steps (after hierarchical_a2a), or when the
/// output of an op of a chain has no reader or several.
std::vector<CapacityChain> capacity_chains(const Graph& graph, const std::string& stage);

/// Cuts the chain into `degree` parts whose lengths differ by at most one; returns these lengths.
/// In the program the transfers are in the order D_1..D_r, C_1..C_r (to the experts, then back).
/// Requires: 1 < degree <= capacity. Throws UserError when an op of the chain is already cut.
std::vector<int64_t> cut_capacity(Graph& graph, const CapacityChain& chain, int64_t degree);

}  // namespace moe
