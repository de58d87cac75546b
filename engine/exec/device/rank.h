// One rank whose memory is on a device: queues each op of the program on the stream of its lane, as
// the host comes to it, and reads when the step is over what the host wants of it. In float32; the
// collectives are queued by the DeviceQueue of the ranks, between begin() and end().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/exec/collective_layout.h"
#include "engine/exec/device/buffers.h"
#include "engine/exec/device/comm.h"
#include "engine/exec/device/handles.h"
#include "engine/exec/expert_mover.h"
#include "engine/exec/results/rank_report.h"
#include "engine/ops/kernel_call.h"

namespace moe {

class DeviceRank {
 public:
  /// Waits on the host until an event is over; throws what ended the run.
  using HostWait = std::function<void(kernels::Event)>;

  /// Keeps references to its arguments. Throws RunError where the device has no room.
  DeviceRank(const Plan& plan, const RunOptions& options, const PersistentTensors& persistents,
             const DeviceProgram& program, const kernels::DeviceTable& device, HostWait wait,
             int64_t rank);

  /// Gates and, where asked, initial values. Called once.
  void prepare(bool initialise_parameters);
  /// What persists: from the device to buffers(), and back with the host's copies.
  void fetch();
  void store();

  /// On the host; queue_inputs() or a replay of it takes them to the device.
  void fill_inputs(const DataSource& data, int64_t step);
  /// Called before the host queues anything of a step.
  void start_step();
  /// Instead of queueing: the step is a replay of one whose ops all ran.
  void replayed();
  /// Queues on the compute lane what a step begins with: the inputs, and the step's number.
  void queue_inputs();
  /// The op's waits, on the host and on its stream.
  void wait_for(const DeviceStep& step);
  /// Records that the op, or a chunk of it, begins.
  void begin(const DeviceStep& step, int64_t chunk = 0);
  /// Of a collective: the chunk, or all movements of experts, are queued.
  void moved(const DeviceStep& step, int64_t chunk);
  /// A compute op, between begin() and end().
  void compute(const DeviceStep& step, const StepSpec& spec);
  /// This rank in a chunk of a collective op.
  DeviceMember member(const DeviceStep& step, int64_t chunk);
  /// The same in the next exchange of an op of Collective::kExperts, from action `at` on, which
  /// moves on; what comes before it is queued. No pieces: there is no other.
  DeviceMember next_exchange(const DeviceStep& step, size_t& at);
  /// What follows the op: copies to the host, the look at its numbers, the event that others wait
  /// for.
  void end(const DeviceStep& step);
  /// Queues on the compute lane, which has waited for all others, what a step ends with.
  void queue_results();

  /// Of the step that is over; start: the timed event at which it began. Throws RunError naming op,
  /// tensor and element where a number is not finite.
  RankReport report(const StepSpec& spec, kernels::Event start);

  kernels::Stream stream(LaneId lane) const { return streams_[lane.index()].get(); }
  int64_t num_chunks(OpId op) const { return launches_[op.index()].num_chunks; }
  const RankBuffers& buffers() const { return host_; }
  Bytes allocated() const { return device_buffers_.allocated(); }
  int64_t rank() const { return rank_; }
  /// "rank 1, step 3, op b1.gate": where the host is.
  std::string whereabouts(int64_t step) const;
  /// Of an op that was given in this step: all of it, or a chunk, is over; some of it has begun.
  bool is_over(OpId op) const { return is_over(op, num_chunks(op) - 1); }
  bool is_over(OpId op, int64_t chunk) const;
  bool has_begun(OpId op) const;
  /// The first op of the step, as they are issued, that is not over.
  OpId stuck() const;

 private:
  struct Launch {
    bool forward = false;
    bool routed = false;  // a gate whose routing is made on the device
    bool predicts = false, offloads = false;
    int64_t num_chunks = 1;
    std::vector<void*> inputs, outputs;
    std::unique_ptr<CollectiveLayout<float>> layout;
    std::unique_ptr<ExpertMover<float>> mover;
    const std::vector<ExpertAction<float>>* actions = nullptr;  // of the mover, in this step
    PlacementFunction place;                                    // of a place op
    Gate gate;
    std::unique_ptr<GateRecord> record;
    Update update;
    std::vector<TensorId> checks;           // floats that must be finite
    size_t first_check = 0;                 // its place in nonfinite_
    DeviceEvent done;                       // where the program marks it
    std::vector<DeviceEvent> begins, ends;  // by chunk
    std::vector<Bytes> bytes;               // of a collective, by chunk: sent to others
    bool ran = false;                       // in the last step
  };

  Launch make_launch(const DeviceStep& step);
  template <class Body>
  void each_persistent(Body body) const;
  std::vector<Bytes> scratch_bytes() const;
  Bytes prediction_bytes() const;
  void run_on_host(const DeviceStep& step, Launch& launch, const StepSpec& spec);
  void measure_gradient(const DeviceStep& step, const Launch& launch);
  void poison(const DeviceStep& step);
  void copy(void* to, const void* from, Bytes bytes, kernels::Stream stream);
  void add_spans(const Launch& launch, const DeviceStep& step, kernels::Event start,
                 std::vector<Nanoseconds>& ends, RankReport& report) const;
  void check_finite();
  void check_scores(OpId op, const int32_t* expert);
  RankContext context(const DeviceStep& step, const Launch& launch, const StepSpec& spec) const;

  const Plan& plan_;
  const RunOptions& options_;
  const PersistentTensors& persistents_;
  const DeviceProgram& program_;
  const kernels::DeviceTable& device_;
  const HostWait wait_;
  const int64_t rank_;
  RankBuffers host_;  // what persists, between steps, for whoever looks
  DeviceBuffers device_buffers_;
  std::vector<DeviceStream> streams_;  // by lane
  std::vector<Launch> launches_;       // by op
  TensorId ids_, targets_;
  DeviceStorage nonfinite_, nonfinite_host_;      // [checks] int64
  DeviceStorage step_, step_host_;                // the number of the step, int64
  DeviceStorage predictions_, predictions_host_;  // [tokens] int32, where they are kept
  DeviceEvent idle_;                              // for copies between steps
  std::vector<Measure> gradients_;
  RankReport report_;  // what the host's own ops observe
  OpId current_;
};

/// Whether the plugin's kernels route this gate op in this run: none of the run's own takes its
/// place.
bool routes_on_device(const Plan& plan, const Policies& policies, OpId op);

/// What the executor reads of a step when it is over: losses, and what gates did.
std::vector<TensorId> kept_tensors(const Plan& plan);

}  // namespace moe
