// Lina's inference in a run: what a rank did with offloaded experts, and whether a profile of
// paths is one for the plan.
#pragma once

#include <functional>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// Of the placements of a block whose experts are offloaded.
PlacementBounds offloaded_bounds(const Plan& plan, int64_t block);

/// Whether the op handles offloaded experts, in a plan for inference.
bool records_offload(const Plan& plan, OpId op);
/// Adds what an op that handles offloaded experts has just written; called before its buffers may
/// be taken over. Records have one row count, the rank's own. at: where a tensor can be read on the
/// host.
void add_offload(const Plan& plan, OpId op, const std::function<const void*(TensorId)>& at,
                 std::vector<OffloadRecord>& records);
/// All ranks' records [rank][layer] as one per layer: phase 2 decides alike on all of them.
std::vector<OffloadRecord> joined(const std::vector<std::vector<OffloadRecord>>& ranks);

/// Throws UserError where infer.popularity has another number of layers, experts or layers of a
/// path than the plan.
void check_popularity(const Plan& plan, const InferOptions& infer);

}  // namespace moe
