// Functions of the ops place_expected, fine_tune and swap_in (Lina's inference, USENIX ATC 2023),
// used both by the ops' kernels and by the simulator: which placement an op outputs, and which
// blocks of memory a swap_in copies. On CPU ranks the kernel of swap_in copies them; the executor
// cuda copies them from host memory to its GPU. How placements are computed is in
// placement/two_phase.h.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/placement/path_profile.h"
#include "engine/placement/two_phase.h"
#include "kernels/device.h"

namespace moe::ops {

/// Returns the placement that a place_expected computes from `all`, the sum of all ranks'
/// estimates: plain expert parallelism (fixed_mapping) where all of their mass is 0.
Placement placed_as_expected(const Op& op, const Estimate& all);
/// Returns the placement that a fine_tune computes from the gate's counts (rows per expert);
/// nullopt when the estimate agrees with the counts or all counts are 0, so that the placement made
/// from the estimate stays. Without attr estimated, `all` (the sum of all ranks' estimates) is not
/// read and a placement is always returned.
std::optional<Placement> placed_by_counts(const Op& op, const Estimate& all,
                                          std::span<const int64_t> counts);

/// Throws UserError when `popularity` is of another number of MoE layers than `layers`, or of other
/// experts or layers per path than those from which ops of the graph estimate popularity.
void check_popularity(const Graph& graph, int64_t layers, const PathProfile& popularity);

bool is_swap_in(const Graph& graph, OpId op);
/// Returns how many experts a swap_in copies to the device. `before` (null without attr keep) is
/// the placement of the experts that the slots already hold.
int64_t num_loaded(const Placement& placement, const Placement* before, int64_t device);

/// Returns the memory copies of a swap_in: one per weight tensor and slot that holds an expert on
/// this rank, from the weights or, if the slot held the expert before (attr keep), from its
/// earlier content; other slots stay as they are. inputs and outputs: addresses of the op's
/// tensors; only the placements among them are read here. element_bytes: bytes per element of the
/// weights.
std::vector<kernels::Copy> swap_in_copies(const Graph& graph, const Op& op,
                                          std::span<void* const> inputs,
                                          std::span<void* const> outputs, int64_t rank,
                                          Bytes element_bytes);

}  // namespace moe::ops
