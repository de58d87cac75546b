// The one table of executors.
#pragma once

#include <string_view>

#include "engine/exec/executor.h"

namespace moe {

/// executor: "simulate", "cpu" or "cuda". Throws UserError with the nearest name and what is
/// available.
RunResult run(const Plan& plan, std::string_view executor, const RunOptions& options);

}  // namespace moe
