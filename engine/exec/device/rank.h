// One rank whose memory is on a device. It queues each op of the program on the stream of its lane
// when the CPU thread reaches the op, and after the step reads the results that this thread needs.
// Collectives are queued by the DeviceQueue of all ranks, between begin() and end().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/exec/collective_layout.h"
#include "engine/exec/data.h"
#include "engine/exec/device/buffers.h"
#include "engine/exec/device/comm.h"
#include "engine/exec/device/handles.h"
#include "engine/exec/expert_mover.h"
#include "engine/exec/results/rank_report.h"
#include "engine/ops/kernel_call.h"

namespace moe {

class DeviceRank {
 public:
  /// Lets the CPU thread wait until an event has happened; throws the error that ended the run.
  using HostWait = std::function<void(kernels::Event)>;

  /// Keeps references to its arguments. Throws RunError when the device has too little memory.
  DeviceRank(const Plan& plan, const RunOptions& options, const PersistentTensors& persistents,
             const DeviceProgram& program, const kernels::DeviceTable& device, HostWait wait,
             int64_t rank);

  /// Makes the gates and placement policies and, if `initialise_parameters`, the initial values.
  /// Called once.
  void prepare(bool initialise_parameters);
  /// fetch() copies the persistent tensors from the device to buffers(); store() copies them back,
  /// and updates their host copies.
  void fetch();
  void store();

  /// Writes the step's inputs to host memory; queue_inputs(), or its replay, copies them to the
  /// device.
  void fill_inputs(const DataSource& data, int64_t step);
  /// Called before anything of a step is queued.
  void start_step();
  /// Called instead of queueing, when the step is a replay: marks all ops as executed.
  void replayed();
  /// Queues, on the compute lane, the copies to the device with which a step begins: the inputs and
  /// the step's number.
  void queue_inputs();
  /// Executes the op's waits: DeviceStep::host_waits on the CPU thread, stream_waits on the stream.
  void wait_for(const DeviceStep& step);
  /// Records the begin of the op, or of a chunk of it.
  void begin(const DeviceStep& step, int64_t chunk = 0);
  /// Called for a collective when the chunk, or all exchanges of experts, have been queued. Counts
  /// the sent bytes and records the end of each chunk except the last, after which it clears unused
  /// rows.
  void moved(const DeviceStep& step, int64_t chunk);
  /// Queues a compute op between begin() and end(), or runs it on the CPU (DeviceProgram::on_host).
  void compute(const DeviceStep& step, const ProgramRun& spec);
  /// Returns this rank as a member of a chunk of a collective op.
  DeviceMember member(const DeviceStep& step, int64_t chunk);
  /// Returns this rank as a member of the next exchange of an op of Collective::kExperts. Starts at
  /// action `at`, queues the actions before the exchange, and sets `at` behind it. `pieces` is null
  /// when there is no further exchange.
  DeviceMember next_exchange(const DeviceStep& step, size_t& at);
  /// Queues what follows the op: copies to host memory, the check for finite numbers, and the event
  /// for which other streams wait.
  void end(const DeviceStep& step);
  /// Queues the copies to host memory with which a step ends, on the compute lane, which has waited
  /// for all other lanes.
  void queue_results();

  /// The report of the step that has finished; `start` is the timed event at which it began. Throws
  /// RunError, which names op, tensor and element, when a number is not finite.
  RankReport report(const ProgramRun& spec, kernels::Event start);

  kernels::Stream stream(LaneId lane) const { return streams_[lane.index()].get(); }
  int64_t num_chunks(OpId op) const { return launches_[op.index()].num_chunks; }
  const RankBuffers& buffers() const { return host_; }
  Bytes allocated() const { return device_buffers_.allocated(); }
  int64_t rank() const { return rank_; }
  /// Returns how far queueing has come in the program: "rank 1, step 3, op b1.gate".
  std::string whereabouts(int64_t step) const;
  /// For an op that was queued in this step: whether all of it, or one chunk, has finished; whether
  /// any of it has begun.
  bool is_over(OpId op) const { return is_over(op, num_chunks(op) - 1); }
  bool is_over(OpId op, int64_t chunk) const;
  bool has_begun(OpId op) const;
  /// The first op, in the order of issue, that has been queued and has not finished; invalid if
  /// there is none.
  OpId stuck() const;

 private:
  struct Launch {
    bool forward = false;
    bool routed = false;  // a gate that the device routes
    bool predicts = false, offloads = false;
    int64_t num_chunks = 1;
    std::vector<void*> inputs, outputs;
    std::unique_ptr<CollectiveLayout<float>> layout;
    std::unique_ptr<ExpertMover<float>> mover;
    const std::vector<ExpertAction<float>>* actions = nullptr;  // the mover's actions in this step
    PlacementFunction place;                                    // of a place op
    Gate gate;
    std::unique_ptr<GateRecord> record;
    Update update;
    std::vector<TensorId> checks;           // floats that must be finite
    size_t first_check = 0;                 // index of its first check in nonfinite_
    DeviceEvent done;                       // recorded after the op, when it is marked
    std::vector<DeviceEvent> begins, ends;  // indexed by chunk
    std::vector<Bytes> bytes;  // of a collective: sent to other ranks, indexed by chunk
    bool ran = false;          // whether the op ran in the last step
  };

  Launch make_launch(const DeviceStep& step);
  template <class Body>
  void each_persistent(Body body) const;
  std::vector<Bytes> scratch_bytes() const;
  Bytes prediction_bytes() const;
  void run_on_host(const DeviceStep& step, Launch& launch, const ProgramRun& spec);
  void measure_gradient(const DeviceStep& step, const Launch& launch);
  void poison(const DeviceStep& step);
  void copy(void* to, const void* from, Bytes bytes, kernels::Stream stream);
  void add_spans(const Launch& launch, const DeviceStep& step, kernels::Event start,
                 std::vector<Nanoseconds>& ends, RankReport& report) const;
  void check_finite();
  void check_scores(OpId op, const int32_t* expert);
  RankContext context(const DeviceStep& step, const Launch& launch, const ProgramRun& spec) const;

  const Plan& plan_;
  const RunOptions& options_;
  const PersistentTensors& persistents_;
  const DeviceProgram& program_;
  const kernels::DeviceTable& device_;
  const HostWait wait_;
  const int64_t rank_;
  RankBuffers host_;  // persistent tensors, between steps, for the run loop
  DeviceBuffers device_buffers_;
  std::vector<DeviceStream> streams_;  // indexed by lane
  std::vector<Launch> launches_;       // indexed by op
  TokenInputs inputs_;
  DeviceStorage nonfinite_, nonfinite_host_;      // [checks] int64
  DeviceStorage step_, step_host_;                // the step's number, int64
  DeviceStorage predictions_, predictions_host_;  // [tokens] int32, with keep_predictions
  DeviceEvent idle_;                              // for copies between steps
  std::vector<Measure> gradients_;
  LastPlaced placed_;  // the layer that was placed last
  RankReport report_;  // filled by the ops that run on the CPU
  OpId current_;
};

/// Whether the device's kernels route this gate op in this run: it is a gate that they can route,
/// and neither a gate of `policies` nor a routing model replaces it.
bool routes_on_device(const Plan& plan, const Policies& policies, OpId op);

/// The tensors that the executor reads after a step: losses, and outputs of gates.
std::vector<TensorId> kept_tensors(const Plan& plan);

}  // namespace moe
