// The loop of a run, the same for every executor: which steps there are, and between them what is
// done with all ranks' reports and parameters. An executor lends it the ranks that are here as
// LocalRanks. In a job every process has a loop; all do the same at the same time, and rank 0's
// decides.
// What a step is made of (threads, devices, their failures) is the executor's.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "engine/exec/results/rank_report.h"

namespace moe {

/// The ranks that are here. Called on the loop's thread, one function at a time.
struct LocalRanks {
  /// Runs one step, begun when they see fit (StepSpec::start comes as 0), in a job at
  /// common_start(); returns the reports in rank order. The host buffers then hold the placements
  /// in force (PersistentTensors::placed), which are compared after every step.
  std::function<std::vector<RankReport>(const DataSource&, const StepSpec&)> run_step;
  /// What the emulated link carried since the last step began; null: there is none.
  std::function<std::vector<LinkSpan>()> take_links;
  /// All persistent tensors into the host buffers, before these are read, and out of them, after
  /// they were written. Null: the ranks work in the host buffers.
  std::function<void()> fetch, store;
};

/// In this order: meet, restore, run, finish, each once. T is the float type of the run. In a
/// job all four are collective, and throw RunError as Processes does.
template <class T>
class RunLoop {
 public:
  /// Keeps references to its arguments.
  RunLoop(const Plan& plan, const RunOptions& options);

  const PersistentTensors& persistents() const { return persistents_; }
  /// Whether the ranks are to make their own initial values: no file gives them.
  bool starts_afresh() const;

  /// here: host buffers in rank order; in a job this process's one. Throws RunError naming a rank
  /// of the job whose plan has another hash.
  void meet(AllBuffers here, LocalRanks local_ranks);
  /// Where a file gives initial values, they are all ranks' afterwards. Throws as read_checkpoint
  /// and read_parameters.
  void restore();
  /// All steps with their checkpoints, then the evaluation; a request to stop (base/stop.h) ends
  /// either behind the step or batch in progress.
  void run();
  /// Within run_step, in a job: a time for all its ranks to begin with, soon, on this process's
  /// clock. Collective.
  Nanoseconds common_start() { return peers_->start(); }
  /// Measures the parameters, compares ranks' copies and ends RunOptions::record; no step follows.
  /// Throws as measure_parameters. The result lacks peak_bytes.
  RunResult finish();
  /// Instead of finish(): throws what ended the run, a RunError as RunFailed where steps are over.
  [[noreturn]] void fail(const std::exception_ptr& error);

 private:
  void run_step(const DataSource& data, StepSpec spec);
  /// Returns whether to go on.
  bool train_step(int64_t step);
  /// What rank 0 says.
  bool agreed(bool go_on);
  void evaluate();
  void checkpoint(int64_t next_step);
  /// All ranks' persistent tensors into buffers_, on rank 0.
  void gather_persistent();
  bool is_root() const;

  const Plan& plan_;
  const RunOptions& options_;
  const PersistentTensors persistents_;
  LocalRanks local_ranks_;
  std::unique_ptr<Peers> peers_;  // null: all ranks are here
  AllBuffers buffers_;            // by rank, as Peers has them
  int64_t first_step_;
  StepSpec spec_;                    // the last one; start is set by LocalRanks
  std::vector<RankReport> reports_;  // of the last step, by rank
  RunResult result_;
};

}  // namespace moe
