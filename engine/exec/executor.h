// Executor: the interface, with one virtual function, that the simulator, the CPU ranks and the
// GPUs implement. The table of executors is in engine/run.cpp.
#pragma once

#include "engine/exec/results/run_result.h"
#include "engine/exec/run_options.h"
#include "engine/plan.h"

namespace moe {

/// run() throws RunError when a run fails, and UserError when the input is wrong, for example a
/// gate; when at least one step was finished before, RunFailed or InputFailed, which have the
/// results so far.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual RunResult run(const Plan& plan, const RunOptions& options) = 0;
};

}  // namespace moe
