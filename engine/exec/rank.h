// One rank of a CPU run: its memory, its program as tables that a lane's thread walks in the plan's
// order, and what a pass over it gave. T is the float type of the run.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/exec/collectives.h"
#include "engine/exec/gate_stats.h"
#include "engine/exec/parameters.h"
#include "engine/exec/sync.h"
#include "engine/ops/kernel_call.h"

namespace moe {

/// What one pass over the program is: the same for all threads, written while they wait.
struct Pass {
  int64_t step = 0;
  uint32_t epoch = 0;  // counts passes, from 1
  bool train = true;   // false: the forward's ops only
  bool measure_gradients = false;
  Nanoseconds start = 0;  // common start on the run's clock
};

template <class T>
class Rank {
 public:
  /// Keeps references to its arguments.
  Rank(const Plan& plan, const RunOptions& options, const Persistents& persistents, int64_t rank);

  /// Called once on the compute lane's thread: pages, initial values (unless resumed), gates.
  void prepare(bool initialise_parameters);
  /// Called between passes by one thread.
  void fill_inputs(const DataSource& data, int64_t step);
  void start_pass();
  /// Runs the lane's ops in order, each after the ops of other lanes that it waits for. Called on
  /// the lane's thread; comm is null for the compute lane. Throws Aborted, or what an op threw.
  void run_lane(LaneId lane, const Pass& pass, Communicator* comm);
  /// Ends all lanes at their next op.
  void abort();

  /// The op that a lane is at; invalid outside a pass.
  OpId current(LaneId lane) const { return lanes_[lane.index()].current; }
  const RankBuffers& buffers() const { return buffers_; }
  // Of the last pass, read when all threads have left it.
  double loss() const { return loss_; }
  const std::vector<Span>& spans(LaneId lane) const { return lanes_[lane.index()].spans; }
  std::vector<const GateRecord*> gate_records() const;
  /// By parameter in reference order, of a pass with measure_gradients.
  const std::vector<Measure>& gradients() const { return gradients_; }

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
    std::vector<OpId> waits;  // on other lanes
    bool awaited = false;     // by another lane
    bool forward = false;
    Gate gate;  // of a gate op, with what it did
    std::unique_ptr<GateRecord> record;
    const double* loss = nullptr;
    int64_t updates = -1;  // number of the parameter, of an update op
    const T* gradient = nullptr;
    std::vector<Check> checks;
  };
  struct Lane {
    std::vector<Launch> launches;
    std::vector<Span> spans;
    OpId current;
  };

  Launch make_launch(LaneId lane, OpId op);
  void add_checks(Launch& launch);
  void add_update(Launch& launch);
  Nanoseconds run(Launch& launch, LaneId lane, const Pass& pass, Nanoseconds ready,
                  Communicator* comm);
  void call_kernel(Launch& launch, const Pass& pass);
  void after(Launch& launch, const Pass& pass);
  void check(const Launch& launch) const;

  const Plan& plan_;
  const RunOptions& options_;
  const Persistents& persistents_;
  const int64_t rank_;
  const kernels::KernelTable<T>& table_;
  RankBuffers buffers_;
  std::unique_ptr<Poison> poison_;
  Progress progress_;
  std::atomic<bool> aborted_{false};
  TensorId ids_, targets_;
  std::vector<Lane> lanes_;
  double loss_ = 0;
  std::vector<Measure> gradients_;
};

}  // namespace moe
