#include "engine/run.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/threads.h"
#include "engine/exec/cpu/executor.h"
#include "engine/exec/device/executor.h"
#include "engine/sim/simulator.h"

namespace moe {
namespace {

/// Turns of several runs in one process: only one of them executes steps at a time, and after a few
/// steps the next one does. A machine that becomes slower then meets all of them alike. Run i is
/// called by the thread of run i only, which waits here. begin() and end() once; step() after each
/// of its steps. A run that waits continues as soon as all runs before it have passed on their turn
/// or ended, so a request to stop reaches every run.
class Turns {
 public:
  /// The first turn of a run lasts for its first step, which is the slowest, further turns for
  /// `steps` steps.
  Turns(size_t num_runs, int64_t steps) : steps_(steps), runs_(num_runs) {}

  /// Waits for the run's first turn.
  void begin(size_t run) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return current_ == run; });
  }

  /// Passes the turn on and waits for the next one, if the turn is over.
  void step(size_t run) {
    std::unique_lock lock(mutex_);
    if (runs_[run].done++ % steps_ != 0) return;
    pass_on(run);
    changed_.wait(lock, [&] { return current_ == run; });
  }

  /// Passes the turn on for good.
  void end(size_t run) {
    const std::lock_guard lock(mutex_);
    runs_[run].ended = true;
    pass_on(run);
  }

 private:
  struct Run {
    int64_t done = 0;  // number of steps
    bool ended = false;
  };
  /// Gives the turn to the next run that has not ended, if there is one.
  void pass_on(size_t run) {
    for (size_t i = 1; i <= runs_.size(); ++i) {
      current_ = (run + i) % runs_.size();
      if (!runs_[current_].ended) break;
    }
    changed_.notify_all();
  }

  const int64_t steps_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Run> runs_;
  size_t current_ = 0;
};

}  // namespace

std::span<const ExecutorDef> executors() {
  using enum Precision;
  static const ExecutorDef kExecutors[] = {
      {"simulate", "the cost model's timeline", make_simulator},
      {"cpu",
       "real training on ranks that are threads of this process, or processes of a job",
       make_cpu_executor,
       {kF32, kF64}},
      {"cuda",
       "real training on ranks whose memory is on one GPU",
       make_cuda_executor,
       {kF32, kBF16},
       true,
       cuda_missing},
  };
  static const bool checked = [] {
    check_rows("executors", kExecutors);
    for (const ExecutorDef& def : kExecutors) {
      MOE_CHECK(def.make != nullptr,
                "the row of executor '{}' in the table of executors has no function `make`",
                def.name);
    }
    return true;
  }();
  static_cast<void>(checked);
  return kExecutors;
}

const ExecutorDef& executor_def(std::string_view name) {
  std::vector<std::string> names;
  for (const ExecutorDef& def : executors()) {
    if (name == def.name) return def;
    names.emplace_back(def.name);
  }
  throw UserError(unknown_name("executor", name, names));
}

std::string missing(const ExecutorDef& executor) {
  return executor.missing == nullptr ? "" : executor.missing();
}

void check_steps(const ExecutorDef& executor, const RunResult& result) {
  if (!executor.precisions.empty()) return;
  const size_t steps = result.metrics.size();
  MOE_CHECK(steps > 0, "executor '{}' returned the metrics of no step", executor.name);
  MOE_CHECK(result.timelines.size() == steps && result.bounds.size() == steps,
            "executor '{}' returned metrics of {} steps, but {} timelines and {} lower bounds",
            executor.name, steps, result.timelines.size(), result.bounds.size());
}

RunResult run(const Plan& plan, std::string_view executor, const RunOptions& options) {
  const ExecutorDef& def = executor_def(executor);
  const std::vector<Precision>& own = def.precisions;
  if (!own.empty() && std::find(own.begin(), own.end(), options.precision) == own.end()) {
    throw user_error(
        "precision: {} is not allowed on executor '{}'; allowed: the precisions in the executor's "
        "row of the table in engine/run.cpp",
        name_of(options.precision), def.name);
  }
  RunResult result = def.make()->run(plan, options);
  check_steps(def, result);
  return result;
}

PartialRun run_partially(const Plan& plan, std::string_view executor, const RunOptions& options) {
  const auto kept = [&](const auto& failed) -> PartialRun {
    if (plan.spec.inference) throw;
    return {std::move(*failed.so_far), false};
  };
  try {
    return {run(plan, executor, options)};
  } catch (const RunFailed& failed) {
    return kept(failed);
  } catch (const InputFailed& failed) {
    return kept(failed);
  }
}

std::vector<TurnsResult> run_in_turns(std::vector<RunInTurns> runs, int64_t steps) {
  std::vector<TurnsResult> results(runs.size());
  Turns turns(runs.size(), steps);
  for (size_t i = 0; i < runs.size(); ++i) {
    auto& on_step = runs[i].options.on_step;
    on_step = [&turns, i, shown = std::move(on_step)](int64_t step, double loss) {
      const bool go_on = !shown || shown(step, loss);
      turns.step(i);
      return go_on;
    };
  }
  const auto name = [](int64_t i) { return fmt::format("run {} of those in turns", i + 1); };
  {  // the threads end before the results are used
    const ThreadGroup threads(static_cast<int64_t>(runs.size()), name, [&](int64_t number) {
      const auto i = static_cast<size_t>(number);
      turns.begin(i);
      try {
        results[i].run = run_partially(*runs[i].plan, runs[i].executor, runs[i].options);
      } catch (const std::exception&) {
        results[i].error = std::current_exception();
      }
      turns.end(i);
    });
  }
  return results;
}

}  // namespace moe
