// The simulator: an Executor that computes the times of a plan with the event engine (replay/) and
// the plan's cost model. It executes no ops and holds no tensors.
#pragma once

#include <memory>

#include "engine/exec/executor.h"

namespace moe {

/// Returns the simulator. Its RunResult has a timeline and metrics for each step if the plan has a
/// routing model. Without a routing model all steps are the same, and only one is simulated. Ranks
/// that all do the same are simulated once; then Timeline::num_ranks is 1. The result has the peak
/// bytes of the plan and no losses.
std::unique_ptr<Executor> make_simulator();

}  // namespace moe
