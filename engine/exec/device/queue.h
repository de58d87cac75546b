// Enqueues a step on the ranks' streams: in the program's order where every lane runs in order;
// otherwise each lane as far as what it waits for has been enqueued, and the lanes that choose as
// their arbiters do. Not here: recordings, and what is done between steps.
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
  /// All ranks of this process.
  using Ranks = std::vector<std::unique_ptr<DeviceRank>>;
  /// Returns when the condition holds, looking at it again and again; throws what ended the run.
  using WaitUntil = std::function<void(const std::function<bool()>&)>;

  /// Keeps references to its arguments.
  DeviceQueue(const Plan& plan, const RunOptions& options, const DeviceProgram& program,
              const kernels::DeviceTable& device, const Ranks& ranks, DeviceCommunicator& comm,
              WaitUntil wait_until);

  /// Before the step's common start.
  void start_step(const StepSpec& spec);
  /// Returns when all is enqueued; what follows on first_stream() begins when the step is over.
  void enqueue(const StepSpec& spec);
  /// As DeviceArbiters says.
  bool awaits_others() const { return arbiters_.awaits_others(); }
  /// When the step is over here.
  void end_step() { arbiters_.end_step(); }
  kernels::Stream first_stream() const { return ranks_[0]->stream(LaneId(0)); }
  /// The timed event at which the last step began.
  kernels::Event start() const { return start_.get(); }

 private:
  bool runs(OpId op, const StepSpec& spec) const;
  void enqueue_arbitrated(const StepSpec& spec);
  bool enqueue_ready(const StepSpec& spec);
  /// Enqueued in this step, where lanes choose, and over on every rank.
  bool is_over(OpId op) const;
  bool can_be_enqueued(const DeviceStep& step) const;
  void enqueue(const DeviceStep& step, const StepSpec& spec);
  void enqueue_compute(DeviceRank& rank, const DeviceStep& step, const StepSpec& spec);
  void enqueue_chunk(const DeviceStep& step, int64_t chunk);
  void move(const DeviceStep& step, int64_t chunk);
  void move_experts(const DeviceStep& step);
  void begin(size_t rank);
  void end(size_t rank);
  /// "rank 1, step 3, op b1.gate: " before what the body throws.
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
  std::vector<DeviceEvent> over_;   // by rank and lane
  std::vector<DeviceEvent> ready_;  // by rank: its inputs are there; at the end: its results
  int64_t step_ = 0;                // number of the step
  // Where lanes choose.
  std::vector<size_t> step_of_;            // by op: its place in the program
  std::vector<std::vector<OpId>> queues_;  // by lane, of those that run in order: as in the plan
  std::vector<size_t> heads_;              // by lane: the next one to enqueue
  std::vector<bool> enqueued_;             // by op
};

}  // namespace moe
