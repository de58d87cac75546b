// Slots of copied experts: the copies of every micro-batch use the same slots behind a parameter
// (ops/copy_experts.cpp), one micro-batch after the other.
#pragma once

#include "engine/graph/joined.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/unroll.h"

namespace moe {

/// Lets each op that fills slots wait for those that read what was in them before. Slots are filled
/// in the order of the turns; of two turns beside each other, in the order of how much of each is
/// behind it, so that the forward may use the slots of its first layers, and the backward those of
/// its own.
void order_slots(const Graph& graph, Schedule& schedule, const StepTurns& turns);

/// Throws RunError naming both ops if an op may fill slots that another still reads.
void check_slots(const Graph& graph, const JoinedTensors& joined, const HappensBefore& hb);

}  // namespace moe
