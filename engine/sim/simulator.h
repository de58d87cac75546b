// The simulator: an Executor around replay/ and the plan's cost model.
#pragma once

#include <memory>

#include "engine/exec/executor.h"

namespace moe {

/// RunResult with a timeline and its metrics for each step that the plan's routing model is asked
/// about; without a routing model all steps are alike and one stands for them. Ranks that do the
/// same are simulated once (Timeline::num_ranks is 1 then). The plan's peak bytes; no losses.
std::unique_ptr<Executor> make_simulator();

}  // namespace moe
