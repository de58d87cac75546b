// Pro-Prophet's block-wise scheduler (arXiv 2411.10003, section V and algorithm 2) on placed MoE
// layers: when the planner runs, and beside which compute experts and their gradients travel.
// Adds order edges and priorities, moves no op to another lane.
#pragma once

#include "engine/passes/pass.h"

namespace moe {

/// With blocks i = 1..l, each an MoE layer and the compute up to the next one's all-to-all:
///   Plan (place)               of the next step, under the first all-to-all of its own layer;
///                              where that cannot be, under the second
///   Trans (copy_experts)       of block i+1 while block i computes: sub-Trans A between the two
///                              all-to-alls (FEC), sub-Trans B between the second and the first
///                              of block i+1 (FNEC); of block 1 before its first all-to-all
///   Agg (return_gradients)     of block i+1 while block i goes back: sub-Agg B before block i's
///                              first all-to-all (BNEC), sub-Agg A between its two (BEC); of block
///                              1 behind the last all-to-all
/// Attr beside of the ops says which is which; a placement without `split` has A only. A transfer
/// that outlasts its compute holds up the all-to-all behind it: T_PTrans and T_PAgg of equation
/// (8). Every transfer of experts is ordered against every all-to-all, so that no two use the
/// network at once whatever lanes they are on; it has an all-to-all's priority, since one waits for
/// it. Where another stage's order leaves no room (weights' gradients that dw_schedule put later),
/// the gradients take the next gap that does.
/// Nothing to do where no rows are exchanged. Throws UserError where no stage has placed the
/// experts, or their placements are made in the layer that they are for (use = 'now').
Schedule prophet_schedule(const Graph& graph, Schedule schedule, const PassContext& context);

}  // namespace moe
