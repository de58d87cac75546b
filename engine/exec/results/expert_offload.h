// Records of Lina's inference in a run: what a rank did with offloaded experts. The passes that add
// the ops are in passes/placement/, not here.
#pragma once

#include <functional>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// Whether the op's outputs belong in an OffloadRecord, in a plan for inference.
bool records_offload(const Plan& plan, OpId op);
/// Adds the outputs of an op for which records_offload() is true to `records`; called before other
/// tensors may reuse the op's buffers. Each record has one row count, that of this rank. at(tensor)
/// is the address of a tensor's values in memory of the CPU.
void add_offload(const Plan& plan, OpId op, const std::function<const void*(TensorId)>& at,
                 std::vector<OffloadRecord>& records);
/// Combines all ranks' records [rank][layer] into one per layer. All ranks must have the same
/// placement in force.
std::vector<OffloadRecord> joined(const std::vector<std::vector<OffloadRecord>>& ranks);

}  // namespace moe
