// The part of legality that looks at storage: where tensors lie, and who may write over whom.
#pragma once

#include "engine/graph/joined.h"
#include "engine/schedule/memory.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// Throws RunError naming the tensor when something that persists lies in the arena or the reverse,
/// when persistent tensors overlap, or when joined tensors do not lie as they are joined.
void check_places(const Graph& graph, const JoinedTensors& joined, const MemoryPlan& memory);

/// Throws RunError naming op, lane, tensors and the other user when an op writes bytes of the arena
/// that another tensor, or one that is joined with it, may still need on some timing. Joined
/// tensors share bytes among themselves as check_joined allows.
void check_reuse(const Graph& graph, const Schedule& schedule, const JoinedTensors& joined,
                 const HappensBefore& hb, const MemoryPlan& memory);

}  // namespace moe
