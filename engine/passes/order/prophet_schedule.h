// Pro-Prophet's block-wise scheduler (arXiv 2411.10003, section V and algorithm 2) for placed MoE
// layers: it decides when the planner runs, and during which compute the copies of experts and
// their gradients are transferred. Invariant: it only adds order edges and priorities and moves no
// op to another lane. Which experts are copied is decided in placement/prophet.h.
#pragma once

#include "engine/passes/pass.h"

namespace moe {

/// Blocks are numbered i = 1..l; a block is an MoE layer and the compute up to the all-to-all of
/// the next one. In names of the paper:
///   Plan (op place)              of the next step: runs during the first all-to-all of its own
///                                layer or, where that is impossible, during the second
///   Trans (op copy_experts)      of block i+1: runs while block i computes, sub-Trans A between
///                                the two all-to-alls of block i (FEC), sub-Trans B between the
///                                second one and the first of block i+1 (FNEC);
///                                of block 1: before its first all-to-all
///   Agg (op return_gradients)    of block i+1: runs during the backward of block i, sub-Agg B
///                                before the first all-to-all of this backward (BNEC), sub-Agg A
///                                between its two all-to-alls (BEC);
///                                of block 1: after the last all-to-all
/// The attr `beside` of an op states whether it is A or B; a placement without `split` has only A.
/// A transfer that takes longer than the compute delays the all-to-all after it: T_PTrans and
/// T_PAgg of equation (8). Every transfer of experts is ordered against every all-to-all, so that
/// two of them never use the network at once, whatever their lanes are. A transfer of experts has
/// the priority of an all-to-all, because an all-to-all waits for it. Where the order edges of
/// another stage leave no room (dw_schedule may have moved weight gradients back), the gradients
/// take the next gap that fits.
/// Changes nothing when no rows are exchanged. Throws UserError when no stage has placed the
/// experts, or when placements are made in the layer that they are for (use = 'now').
Schedule prophet_schedule(const Graph& graph, Schedule schedule, const PassContext& context);

}  // namespace moe
