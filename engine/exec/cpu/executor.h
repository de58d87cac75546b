// Runs a plan on N CPU ranks, all of them in this process or one in each of a job's: a compute
// thread and one thread a comm lane for each rank, in the plan's lane orders and no other. The
// compute lane of a process's first rank runs on the caller's thread. Denormal numbers are kept (no
// flush to zero), as in the double reference.
#pragma once

#include <memory>

#include "engine/exec/executor.h"

namespace moe {

std::unique_ptr<Executor> make_cpu_executor();

}  // namespace moe
