// The loop over the steps of a run, the same for every executor on real ranks: it counts the steps,
// and between steps collects all ranks' reports and parameters. The executor passes the ranks of
// this process as LocalRanks. In a job, every process has a loop; all loops do the same in the same
// order, and rank 0 decides when they stop. How a step is executed (threads, devices, their
// failures) is the executor's, not here.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "engine/exec/results/rank_report.h"

namespace moe {

/// The ranks of this process. The loop calls these functions on its own thread, one at a time.
struct LocalRanks {
  /// Runs one step and returns the reports in rank order. ProgramRun::start is 0: the executor
  /// sets the start, in a job by common_start(). Afterwards the host buffers hold the placements
  /// in force (PersistentTensors::placed), which are compared after every step.
  std::function<std::vector<RankReport>(const DataSource&, const ProgramRun&)> run_step;
  /// Returns what the emulated link carried since the last step began. Null, or returns nothing,
  /// when the run has no emulated link.
  std::function<std::vector<LinkSpan>()> take_links;
  /// Returns the state of the machine before a step. Null: the results lack it.
  std::function<MachineState()> machine;
  /// `fetch` copies all persistent tensors from the device into the host buffers (RankBuffers),
  /// before the loop reads these buffers; `store` copies them back, after the loop wrote these
  /// buffers. Null when the ranks compute in the host buffers.
  std::function<void()> fetch, store;
};

/// Call order: meet, restore, run, finish, each once. T is the float type of the run. In a job
/// these four functions are collective, and throw RunError as Processes does.
template <class T>
class RunLoop {
 public:
  /// Keeps references to its arguments.
  RunLoop(const Plan& plan, const RunOptions& options);

  const PersistentTensors& persistents() const { return persistents_; }
  /// Returns those of a pipeline rank (persistents_by_program()).
  const PersistentTensors& persistents(int64_t pipeline_rank) const {
    return by_program_[static_cast<size_t>(pipeline_rank)];
  }
  /// Whether the ranks must compute the initial parameters, because the run reads no checkpoint.
  bool starts_afresh() const;

  /// Gives the loop the ranks of this process. `here`: their host buffers in rank order; in a job,
  /// of the one rank. Throws RunError, which names the rank, when a rank of the job has a plan of
  /// another hash.
  void meet(AllBuffers here, LocalRanks local_ranks);
  /// Reads the initial values of all ranks from the checkpoint that the options name; does nothing
  /// when they name no checkpoint. Throws as read_checkpoint and read_parameters do.
  void restore();
  /// Runs all steps, writes the checkpoints, then evaluates. A request to stop (base/stop.h) ends
  /// the steps or the evaluation after the current step or batch.
  void run();
  /// In a job, called by the executor within run_step: returns a time in the near future, on this
  /// process's clock, at which all ranks begin the step. Collective.
  Nanoseconds common_start() { return peers_->start(); }
  /// Measures the parameters, compares the values of tensors that several ranks hold, and completes
  /// RunOptions::record; no step may follow. Throws as measure_parameters does. The executor fills
  /// in peak_bytes of the result.
  RunResult finish();
  /// Called instead of finish(): throws `error` again; on rank 0, a RunError as RunFailed and a
  /// UserError as InputFailed when at least one step is finished.
  [[noreturn]] void fail(const std::exception_ptr& error);

 private:
  void run_step(const DataSource& data, ProgramRun spec);
  /// Runs one training step; returns whether rank 0 decided to continue.
  bool train_step(int64_t step);
  /// Returns rank 0's value of `go_on`, on every process. Collective.
  bool agreed(bool go_on);
  void evaluate();
  void checkpoint(int64_t next_step);
  /// Copies all ranks' persistent tensors into buffers_ on rank 0.
  void gather_persistent();
  bool is_root() const;

  const Plan& plan_;
  const RunOptions& options_;
  const PersistentTensors persistents_;
  const std::vector<PersistentTensors> by_program_;
  LocalRanks local_ranks_;
  std::unique_ptr<Peers> peers_;  // null when all ranks are in this process
  AllBuffers buffers_;            // indexed by rank, as Peers::buffers() is
  int64_t first_step_;
  ProgramRun spec_;                  // of the last step, with start = 0
  std::vector<RankReport> reports_;  // of the last step, indexed by rank
  RunResult result_;
};

}  // namespace moe
