// Queues the ops of a step on the ranks' streams. When no lane has an arbiter (arbiters.h), ops are
// queued in the program's order. Otherwise a lane without an arbiter is queued as far as the ops
// for which it waits have been queued, and a lane with an arbiter is queued turn by turn. Not here:
// recordings, and what is done between steps.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/exec/device/arbiters.h"
#include "engine/exec/device/comm.h"
#include "engine/exec/device/rank.h"

namespace moe {

class DeviceQueue {
 public:
  /// The ranks of this process.
  using Ranks = std::vector<std::unique_ptr<DeviceRank>>;
  /// Polls a condition and returns when it is true; throws the error that ended the run.
  using WaitUntil = std::function<void(const std::function<bool()>&)>;

  /// Keeps references to its arguments.
  DeviceQueue(const Plan& plan, const RunOptions& options, const DeviceProgram& program,
              const kernels::DeviceTable& device, const Ranks& ranks, DeviceCommunicator& comm,
              WaitUntil wait_until);

  /// Called before the step's common start.
  void start_step(const ProgramRun& spec);
  /// Returns when the whole step is queued. Work that is then queued on first_stream() begins when
  /// the step has finished.
  void enqueue(const ProgramRun& spec);
  bool awaits_others() const { return arbiters_.awaits_others(); }
  /// Called when the step has finished on this process's ranks.
  void end_step() { arbiters_.end_step(); }
  kernels::Stream first_stream() const { return ranks_[0]->stream(LaneId(0)); }
  /// The timed event at which the last step began.
  kernels::Event start() const { return start_.get(); }

 private:
  bool runs(OpId op, const ProgramRun& spec) const;
  void enqueue_arbitrated(const ProgramRun& spec);
  bool enqueue_ready(const ProgramRun& spec);
  /// Whether the op has been queued in this step and has finished on every rank. Requires: the plan
  /// has arbiters; else enqueued_ is not kept.
  bool is_over(OpId op) const;
  bool can_be_enqueued(const DeviceStep& step) const;
  void enqueue(const DeviceStep& step, const ProgramRun& spec);
  void enqueue_compute(DeviceRank& rank, const DeviceStep& step, const ProgramRun& spec);
  void enqueue_chunk(const DeviceStep& step, int64_t chunk);
  void move(const DeviceStep& step, int64_t chunk);
  void move_experts(const DeviceStep& step);
  void begin(size_t rank);
  void end(size_t rank);
  /// Runs the body and prefixes an exception's message with "rank 1, step 3, op b1.gate: ".
  template <class Body>
  void guarded(const DeviceRank& rank, Body body) const;

  const Plan& plan_;
  const DeviceProgram& program_;
  const kernels::DeviceTable& device_;
  const Ranks& ranks_;
  DeviceCommunicator& comm_;
  const WaitUntil wait_until_;
  DeviceArbiters arbiters_;
  DeviceEvent go_, start_;
  std::vector<DeviceEvent> over_;  // indexed by rank and lane
  /// Indexed by rank: recorded when the rank's inputs are on the device, and again when its step
  /// has finished.
  std::vector<DeviceEvent> ready_;
  int64_t step_ = 0;  // index of the step in the run
  // The following members are used if the plan has arbiters.
  std::vector<size_t> step_of_;  // indexed by op: its index in the program
  /// Indexed by lane, for lanes without an arbiter: their ops in the plan's order.
  std::vector<std::vector<OpId>> queues_;
  std::vector<size_t> heads_;   // indexed by lane: the next op to queue
  std::vector<bool> enqueued_;  // indexed by op: queued in this step
};

}  // namespace moe
