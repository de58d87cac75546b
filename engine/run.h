// The one table of executors.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// What runs a plan. A new one is a row of the table in run.cpp: recipes, the command line, `list`
/// and checks read it.
struct ExecutorDef {
  const char* name;
  const char* doc;
  std::unique_ptr<Executor> (*make)();
  std::vector<Precision> precisions = {};  // that its ranks compute in; none: nothing is computed
  bool gpu = false;                        // its ranks' ops run on a GPU
  /// Why this machine cannot run it, "" where it can; null: every machine can.
  std::string (*missing)() = nullptr;
};
std::span<const ExecutorDef> executors();
/// Throws UserError with the nearest name and what there is.
const ExecutorDef& executor_def(std::string_view name);
std::string missing(const ExecutorDef& executor);

/// executor: a name of executors(). Throws UserError with the nearest name and what is available,
/// and for a precision that the executor does not compute in.
RunResult run(const Plan& plan, std::string_view executor, const RunOptions& options);

struct PartialRun {
  RunResult result;
  bool ended = true;  // false: the run failed after these steps (RunFailed)
};
/// The same, but a run that fails after a step is as good as its steps. Not an inference: half of
/// one is good for nothing, and its failure goes on.
PartialRun run_partially(const Plan& plan, std::string_view executor, const RunOptions& options);

}  // namespace moe
