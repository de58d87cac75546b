// Executor: the one virtual function that the simulator, the CPU ranks and GPUs share.
#pragma once

#include "engine/exec/results/run_result.h"
#include "engine/exec/run_options.h"
#include "engine/plan.h"

namespace moe {

/// run() throws RunError where a run fails, RunFailed where a step of it was over by then.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual RunResult run(const Plan& plan, const RunOptions& options) = 0;
};

}  // namespace moe
