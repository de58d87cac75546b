// Checks of a run's options before an executor runs a plan.
#pragma once

#include "engine/exec/executor.h"

namespace moe {

/// Throws UserError, which names the option, its value and what is allowed, when data for the run
/// is missing, when `steps` is negative, when the number of devices of the emulated link, the
/// number of processes or the popularity profile does not fit the plan, when this process's ranks
/// with `of_host` bytes of host memory each need more than it may allocate, or when a link is
/// emulated in a job.
void check_options(const Plan& plan, const RunOptions& options, Bytes of_host);

}  // namespace moe
