// One rank of a CPU run: its memory, its program as tables that a lane's thread walks in the plan's
// order or as the lane's arbiter chooses, and what a step gave. T is the float type of the
// run.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/exec/arbiter/lane_arbiter.h"
#include "engine/exec/cpu/collectives.h"
#include "engine/exec/results/rank_report.h"
#include "engine/exec/sync.h"
#include "engine/ops/kernel_call.h"

namespace moe {

template <class T>
class Rank {
 public:
  /// arbiters: by lane, null where the lane has none. Keeps references to its arguments.
  Rank(const Plan& plan, const RunOptions& options, const PersistentTensors& persistents,
       const std::vector<LaneArbiter*>& arbiters, int64_t rank);

  /// Called once on the compute lane's thread: pages, initial values (unless resumed), gates.
  void prepare(bool initialise_parameters);
  /// Called between steps by one thread.
  void fill_inputs(const DataSource& data, int64_t step);
  void start_step();
  /// Runs the lane's ops: in order, each after the ops of other lanes that it waits for, or the
  /// turns of its arbiter. Called on the lane's thread; comm is null for the compute lane. Throws
  /// Aborted, or what an op threw.
  void run_lane(LaneId lane, const StepSpec& spec, Communicator* comm);
  /// Ends all lanes at their next op.
  void abort();

  /// Names of the ops that this op, on a lane with an arbiter, waits for. Called by any thread.
  std::string waits_for(OpId op, const StepSpec& spec) const;
  /// The op that a lane is at; invalid outside a step.
  OpId current(LaneId lane) const { return lanes_[lane.index()].current; }
  const RankBuffers& buffers() const { return buffers_; }
  /// Of the last step, called when all threads have left it.
  RankReport report() const;

 private:
  /// Floats that must be finite when the op is over.
  struct Check {
    TensorId tensor;
    const void* data;
    int64_t n;
    bool is_double;
  };
  struct Launch {
    OpId op;
    void (*kernel)(const KernelCall<T>&) = nullptr;
    std::unique_ptr<CollectiveOp<T>> collective;
    std::vector<void*> inputs, outputs;
    void* scratch = nullptr;
    std::vector<OpId> waits;  // on other lanes; with an arbiter, on all
    bool awaited = false;     // by another lane
    bool forward = false;
    std::vector<OpId> posts;              // ops on lanes with an arbiter that wait for it
    std::vector<LaneArbiter*> announces;  // which hold from its begin
    int64_t num_chunks = 1;
    Nanoseconds chunk_post = 0;  // of the chunk that comes next
    Gate gate;                   // of a gate op, with what it did
    std::unique_ptr<GateRecord> record;
    PlacementFunction place;       // of a place op
    const double* loss = nullptr;  // of an op that makes one, a router's or the model's
    bool of_router = false;
    bool predicts = false;
    bool offloads = false;
    int64_t updates = -1;  // number of the parameter, of an update op
    const T* gradient = nullptr;
    std::vector<Check> checks;
  };
  struct Lane {
    std::vector<Launch> launches;
    std::vector<Span> spans;
    OpId current;
    Nanoseconds cpu_ns = 0;  // of its thread in the last step
  };
  /// Of an op on a lane with an arbiter: the thread that ends the last wait posts it.
  struct Posting {
    std::vector<OpId> waits;
    std::atomic<size_t> left{0};
    Nanoseconds ready = 0;
    size_t launch = 0;  // its place in the lane's launches
  };

  Launch make_launch(LaneId lane, OpId op);
  void add_checks(Launch& launch);
  void add_update(Launch& launch);
  void add_postings();
  void walk(LaneId id, const StepSpec& spec, Communicator* comm);
  void take_turns(LaneId id, const StepSpec& spec, Communicator& comm);
  Nanoseconds take_turn(Launch& launch, LaneId id, const StepSpec& spec, const Turn& turn,
                        Communicator& comm);
  void post(std::vector<OpId> ops, const StepSpec& spec);
  Nanoseconds before(const Launch& launch, const StepSpec& spec, Nanoseconds ready);
  Nanoseconds compute(Launch& launch, LaneId lane, const StepSpec& spec, Nanoseconds ready);
  Nanoseconds transfer(Launch& launch, int64_t chunk, LaneId lane, const StepSpec& spec,
                       Nanoseconds posted, Communicator& comm);
  void call_kernel(Launch& launch, const StepSpec& spec);
  void predict(const Launch& launch);
  Nanoseconds after(Launch& launch, const StepSpec& spec);
  void finish(const Launch& launch, const StepSpec& spec, Nanoseconds end);
  void check(const Launch& launch) const;

  const Plan& plan_;
  const RunOptions& options_;
  const PersistentTensors& persistents_;
  const std::vector<LaneArbiter*>& arbiters_;
  const int64_t rank_;
  const kernels::KernelTable<T>& table_;
  RankBuffers buffers_;
  std::unique_ptr<Poison> poison_;
  Progress progress_;
  std::atomic<bool> aborted_{false};
  TensorId ids_, targets_;
  std::vector<Lane> lanes_;
  std::vector<Posting> postings_;  // by op; empty where no lane has an arbiter
  RankReport report_;              // all but spans and gates
};

}  // namespace moe
