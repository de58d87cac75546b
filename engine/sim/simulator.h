// The simulator: an Executor around replay/ and the plan's cost model.
#pragma once

#include <memory>

#include "engine/exec/executor.h"

namespace moe {

/// RunResult with one timeline (ranks that do the same are simulated once), its metrics and the
/// plan's peak bytes; no losses.
std::unique_ptr<Executor> make_simulator();

}  // namespace moe
