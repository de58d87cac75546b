// Records a run's routing as a trace, step by step, from the gates' records. Reading and writing
// traces is in routing/trace.h.
#pragma once

#include <vector>

#include "engine/exec/results/gate_stats.h"
#include "engine/routing/trace.h"

namespace moe {

/// Appends a step to the trace; the first call sets the trace's sizes. Choices that were dropped
/// are recorded like the others. records[rank] are the records of one rank, in any order. Throws
/// UserError for more experts than a trace may have.
void record_step(Trace& trace, std::vector<std::vector<const GateRecord*>> records);

}  // namespace moe
