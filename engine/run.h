// The table of executors, and run(), which runs a plan on one of them. The executors themselves are
// in sim/ and exec/.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// A row of the table of executors in run.cpp. An executor is added by a new row: recipes, the
/// command line, `list` and checks read the table. See check_steps() for what it must return.
struct ExecutorDef {
  const char* name;
  const char* doc;
  std::unique_ptr<Executor> (*make)();
  std::vector<Precision> precisions = {};  // that it can compute in; empty: it computes nothing
  bool gpu = false;                        // whether ops run on a GPU
  /// Returns why this machine cannot run the executor, or ""; null if every machine can.
  std::string (*missing)() = nullptr;
};
std::span<const ExecutorDef> executors();
/// Returns the executor called `name`. If there is none, throws UserError with the nearest name and
/// all names.
const ExecutorDef& executor_def(std::string_view name);
/// Returns why this machine cannot run the executor; "" if it can.
std::string missing(const ExecutorDef& executor);

/// Throws InternalError if `executor` computes nothing and its result lacks the metrics, the
/// timeline or the lower bounds of a step. (exec/run_loop.cpp makes the result of the others.)
void check_steps(const ExecutorDef& executor, const RunResult& result);

/// Runs the plan on the executor called `executor`. Throws UserError if there is none of that name,
/// or if the executor does not support options.precision.
RunResult run(const Plan& plan, std::string_view executor, const RunOptions& options);

struct PartialRun {
  RunResult result;
  bool ended = true;  // false if the run failed after the steps in `result`
};
/// As run(), but if a training run fails after some steps, returns the result of these steps. A
/// failed inference run still throws, since a part of its results is of no use.
PartialRun run_partially(const Plan& plan, std::string_view executor, const RunOptions& options);

/// A run that takes turns with others. The plan must live until the runs are over.
struct RunInTurns {
  const Plan* plan = nullptr;
  std::string executor;
  RunOptions options;
};
struct TurnsResult {
  PartialRun run;
  std::exception_ptr error = nullptr;  // what run_partially() threw; null if it returned `run`
};
/// Does what run_partially() does for several runs, which all stay in memory and take turns of
/// `steps` steps (Turns). Not for the processes of a job. When a run fails, the others go
/// on.
std::vector<TurnsResult> run_in_turns(std::vector<RunInTurns> runs, int64_t steps);

}  // namespace moe
