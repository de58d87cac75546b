// What must hold before a plan runs on CPU ranks.
#pragma once

#include "engine/exec/executor.h"

namespace moe {

/// Throws UserError naming the option, its value and what is allowed: what a run lacks or has too
/// little memory for, and what ranks in several processes cannot do.
void check_options(const Plan& plan, const RunOptions& options);

}  // namespace moe
