// Checks of a run's options before an executor runs a plan.
#pragma once

#include "engine/exec/executor.h"

namespace moe {

/// Throws UserError, which names the option, its value and what is allowed, when data for the run
/// is missing, when a number does not fit the plan, when `of_host` bytes of host memory per rank
/// are more than this process may take, or when the run cannot be done in several processes.
void check_options(const Plan& plan, const RunOptions& options, Bytes of_host);

}  // namespace moe
