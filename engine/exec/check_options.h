// What must hold before an executor runs a plan.
#pragma once

#include "engine/exec/executor.h"

namespace moe {

/// Throws UserError naming the option, its value and what is allowed: what a run lacks, has too
/// little of the host's memory for, of which a rank takes so much, or cannot do in several
/// processes.
void check_options(const Plan& plan, const RunOptions& options, Bytes of_host);

}  // namespace moe
