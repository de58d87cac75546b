// What a swap_in copies. Its weights may lie in host memory and its slots on a device, so whoever
// executes it makes the copies; the op's kernel is all of them on the host.
#pragma once

#include <span>
#include <vector>

#include "engine/graph/graph.h"
#include "kernels/device.h"

namespace moe::ops {

bool is_swap(const Graph& graph, OpId op);

/// An expert's weights each, into the slots that hold one on this device; others are left as they
/// are. inputs, outputs: where the op's tensors lie; placements are read, weights and slots are
/// not. element_bytes: of the weights.
std::vector<kernels::Copy> swap_copies(const Graph& graph, const Op& op,
                                       std::span<void* const> inputs,
                                       std::span<void* const> outputs, int64_t device,
                                       Bytes element_bytes);

}  // namespace moe::ops
