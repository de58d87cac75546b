// Recording a run's routing as a trace: what the gates' records say, step after step.
#pragma once

#include <vector>

#include "engine/exec/results/gate_stats.h"
#include "engine/routing/trace.h"

namespace moe {

/// Appends a step; the first one sets the sizes. Choices that found no place are recorded like the
/// others. records[rank]: one rank's, in any order. Throws UserError for more experts than a trace
/// may have.
void record_step(Trace& trace, std::vector<std::vector<const GateRecord*>> records);

}  // namespace moe
