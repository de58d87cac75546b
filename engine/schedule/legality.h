// The legality check. Every schedule, from a built-in pass or from Lua, must pass it before it is
// simulated or executed. The checks of storage are in storage.h.
#pragma once

#include <span>

#include "engine/schedule/memory.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// `ranks`: the lane orders of each rank (one entry if all ranks have the same). Throws RunError
/// naming op, lane, edge and stage when:
/// - an op is missing, is listed twice, or is on a lane of the wrong kind;
/// - a lane that is not a comm lane picks its next op or is in an exclusive set;
/// - a lane is in two exclusive sets;
/// - a hold is not from a compute op to a later op on a lane with an arbiter, or could hold back an
///   op for which its `until` waits;
/// - the lane orders contradict an edge (data, mutation, order), directly or by a cycle;
/// - ranks would run different collectives at the same position of a lane, or wait for each other
///   in a deadlock;
/// - an irregular all-to-all has no input of counts (rows per expert), or its counts come from
///   another routing than its rows;
/// - a tensor has a wrong place in the memory plan, or is written while another tensor in the same
///   storage may still be in use.
void check_legal(const Graph& graph, const Schedule& schedule, std::span<const LaneOrders> ranks,
                 const MemoryPlan& memory);
/// The part of it that is about orders and lanes, and that about storage, of one rank.
void check_order(const Graph& graph, const Schedule& schedule, std::span<const LaneOrders> ranks);
void check_storage(const Graph& graph, const Schedule& schedule, const HappensBefore& hb,
                   const MemoryPlan& memory);

}  // namespace moe
