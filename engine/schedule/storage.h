// The part of the legality check (legality.h) that is about storage: whether the offsets of tensors
// in the memory plan are valid, and whether no op overwrites a tensor that is still needed.
#pragma once

#include "engine/graph/joined.h"
#include "engine/schedule/memory.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// Throws RunError naming the tensor if a persistent tensor is in the arena or another tensor is in
/// persistent storage, if persistent tensors overlap or exceed their storage, or if joined tensors
/// are not at their offsets in the storage of their group.
void check_places(const Graph& graph, const JoinedTensors& joined, const MemoryPlan& memory);

/// Throws RunError if an op writes a tensor outside the arena, or into bytes of the arena that, in
/// some timing, still hold an older tensor that is in use or joined with a tensor in use. The error
/// names op, lane, both tensors and the op that still needs the older one. Tensors of the same
/// joined group may share bytes; check_joined (graph/joined.h) checks these.
void check_reuse(const Graph& graph, const Schedule& schedule, const JoinedTensors& joined,
                 const HappensBefore& hb, const MemoryPlan& memory);

}  // namespace moe
