// The door that every schedule goes through, built in or Lua's, before it is simulated or executed.
#pragma once

#include <span>

#include "engine/schedule/memory.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// ranks: the lane orders of every member (one entry when all are the same). Throws RunError naming
/// op, lane, edge and stage when: an op is missing, doubled or on a lane of the wrong kind; an edge
/// (data, mutation, order) is contradicted by the lanes' orders, alone or in a cycle; members would
/// meet in different collectives on a lane; an irregular collective has no counts or counts from
/// another routing; a buffer is written while a tensor that shares its storage may still be in use.
void check_legal(const Graph& graph, const Schedule& schedule, std::span<const LaneOrders> ranks,
                 const MemoryPlan& memory);

}  // namespace moe
