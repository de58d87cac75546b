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
/// - the lane orders contradict an edge (data, mutation, order), directly or by a cycle;
/// - ranks would run different collectives at the same position of a lane;
/// - an irregular collective has no input of counts (rows per expert), or its counts come from
///   another routing than its rows;
/// - a buffer is written while a tensor that shares its storage may still be in use.
void check_legal(const Graph& graph, const Schedule& schedule, std::span<const LaneOrders> ranks,
                 const MemoryPlan& memory);

}  // namespace moe
