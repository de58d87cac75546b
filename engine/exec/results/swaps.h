// Lina's inference in a run: what a rank did with swapped experts, and whether a profile of
// paths is one for the plan.
#pragma once

#include <functional>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// Of the placements of a block whose experts are swapped.
PlacementBounds swapped_bounds(const Plan& plan, int64_t block);

/// Whether the op tells something of a swap, in a plan for inference.
bool tells_of_swap(const Plan& plan, OpId op);
/// Adds what an op that tells of a swap has just written; called before its buffers may be taken
/// over. Records have one row count, the rank's own. at: where a tensor can be read on the host.
void add_swap(const Plan& plan, OpId op, const std::function<const void*(TensorId)>& at,
              std::vector<SwapRecord>& records);
/// All ranks' records [rank][layer] as one per layer: phase 2 decides alike on all of them.
std::vector<SwapRecord> joined(const std::vector<std::vector<SwapRecord>>& ranks);

/// Throws UserError where infer.popularity has another number of layers, experts or layers of a
/// path than the plan.
void check_popularity(const Plan& plan, const InferOptions& infer);

}  // namespace moe
