// All-to-all, experts, all-to-all of an MoE layer in parts along the capacity axis: what
// capacity_pipeline and pipemoe share. Which degree, and why, is theirs.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace moe {

/// From an all-to-all "to expert" to the one back, in program order.
struct CapacityChain {
  std::vector<OpId> ops;
  int64_t capacity = 0;  // slots per expert and source: [E, C, d]
};

/// The chains of all MoE layers, in program order; none where nothing is sent. Throws UserError
/// naming the stage when the rows of a part would have to be counted (after irregular_a2a or
/// used_rows), go in steps (after hierarchical_a2a), or do not lead from reader to reader back to
/// their source.
std::vector<CapacityChain> capacity_chains(const Graph& graph, const std::string& stage);

/// Cuts the chain into `degree` parts whose lengths differ by at most one; transfers stand in the
/// program as D_1..D_r, C_1..C_r. Returns the lengths. Requires: 1 < degree <= capacity. Throws
/// UserError where an op of the chain was cut before.
std::vector<int64_t> cut_capacity(Graph& graph, const CapacityChain& chain, int64_t degree);

}  // namespace moe
