// Runs a plan on N CPU ranks, either all in this process or one per process of a job. Each rank has
// a compute thread and one thread per comm lane, which run ops in the plan's lane orders or, on
// lanes with an arbiter, in the turns that it gives. The compute lane of a process's first rank
// runs on the caller's thread. Denormal numbers are kept (no flush to zero), as in the double
// reference.
#pragma once

#include <memory>

#include "engine/exec/executor.h"

namespace moe {

std::unique_ptr<Executor> make_cpu_executor();

}  // namespace moe
