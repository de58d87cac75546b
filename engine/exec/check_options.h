// Checks of a run's options before an executor runs a plan.
#pragma once

#include "engine/exec/executor.h"

namespace moe {

/// Throws UserError, which names the option, its value and what is allowed, when data for the run
/// is missing, when `steps` is negative, when the number of devices or processes or the popularity
/// profile does not fit the plan, when a job emulates a link, or when the ranks of this process,
/// with `of_host` bytes of host memory each, need more than it may allocate.
void check_options(const Plan& plan, const RunOptions& options, Bytes of_host);

}  // namespace moe
