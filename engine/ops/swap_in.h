// What the ops of Lina's inference decide, for their kernels and the simulator alike, and what a
// swap_in copies. Its weights may lie in host memory and its slots on a device, so whoever executes
// it makes the copies; the op's kernel is all of them on the host.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/placement/path_profile.h"
#include "engine/placement/two_phase.h"
#include "kernels/device.h"

namespace moe::ops {

/// What a place_expected makes of all ranks' estimate; where nothing is expected, one expert per
/// device.
Placement placed_as_expected(const Op& op, const Estimate& all);
/// What a fine_tune makes of the gate's counts [experts]; nullopt: the estimate holds, and with it
/// the placement that was made by it. all: not looked at without attr estimated.
std::optional<Placement> placed_by_counts(const Op& op, const Estimate& all,
                                          std::span<const int64_t> counts);

bool is_swap_in(const Graph& graph, OpId op);
/// Experts that a swap_in copies to the device; before: with keep, what its slots hold.
int64_t num_loaded(const Placement& placement, const Placement* before, int64_t device);

/// An expert's weights each, into the slots that hold one on this device; others are left as they
/// are. inputs, outputs: where the op's tensors lie; placements are read, weights and slots are
/// not. element_bytes: of the weights.
std::vector<kernels::Copy> swap_in_copies(const Graph& graph, const Op& op,
                                          std::span<void* const> inputs,
                                          std::span<void* const> outputs, int64_t device,
                                          Bytes element_bytes);

}  // namespace moe::ops
