// One rank of a CPU run: its memory, its program as tables that each lane's thread runs (in the
// plan's order, or in the turns of the lane's arbiter), and the results of a step. T is the float
// type of the run. The threads are in executor.cpp, not here.
//
// In a paced run (RunOptions::pace) times are computed and not read from the clock: an op begins
// when its lane is ready for it, and ends `pace` times the CPU time of its call later. Its lane
// sleeps until then. An op whose thread was late keeps its computed times, so that lateness does
// not add up; RankStats::behind_ns says how late ops were.
#pragma once

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/threads.h"
#include "engine/exec/arbiter/lane_arbiter.h"
#include "engine/exec/cpu/collectives.h"
#include "engine/exec/data.h"
#include "engine/exec/results/rank_report.h"
#include "engine/exec/sync.h"
#include "engine/ops/kernel_call.h"

namespace moe {

/// Returns a time of a paced run as results have it.
inline Nanoseconds paced_ns(Nanoseconds ns, double pace) {
  return std::llround(static_cast<double>(ns) / pace);
}

template <class T>
class Rank {
 public:
  /// `plan` is the program of the rank's pipeline rank (Plan::program), with these persistent
  /// tensors, and `rank` its number there. `arbiters` is indexed by lane, null where the lane has
  /// none. Keeps references to its arguments.
  Rank(const Plan& plan, const RunOptions& options, const PersistentTensors& persistents,
       const std::vector<LaneArbiter*>& arbiters, int64_t rank);

  /// Touches the memory's pages, computes the initial parameters if `initialise_parameters`, and
  /// makes the gates. Called once, on the compute lane's thread.
  void prepare(bool initialise_parameters);
  /// Writes the ids and targets of the step. Called between steps by one thread.
  void fill_inputs(const DataSource& data, int64_t step);
  void start_step();
  /// Runs the lane's ops: in order, each after the ops of other lanes that it waits for, or in the
  /// turns of the lane's arbiter. Called on the lane's thread; `comm` is null for the compute lane.
  /// Throws Aborted, or what an op threw.
  void run_lane(LaneId lane, const ProgramRun& spec, Communicator* comm);
  /// Makes every lane throw Aborted at its next op.
  void abort();

  /// Returns the names of the unfinished ops that `op`, on a lane with an arbiter, waits for.
  /// Called by any thread.
  std::string waits_for(OpId op, const ProgramRun& spec) const;
  /// The op that a lane is running or waiting to run; invalid outside a step.
  OpId current(LaneId lane) const { return lanes_[lane.index()].current; }
  const RankBuffers& buffers() const { return buffers_; }
  const Plan& plan() const { return plan_; }
  size_t num_lanes() const { return lanes_.size(); }
  /// The report of the last step. Called when all threads have left the step.
  RankReport report() const;

 private:
  /// Floats that must be finite when the op has run.
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
    std::vector<OpId> waits;  // ops of other lanes; on a lane with an arbiter, of all lanes
    bool awaited = false;     // whether an op of another lane waits for this op
    bool forward = false;
    std::vector<OpId> posts;              // the ops that wait for this op, on lanes with an arbiter
    std::vector<LaneArbiter*> announces;  // arbiters with a hold that starts with this op
    int64_t num_chunks = 1;
    Nanoseconds chunk_post = 0;          // when the next chunk is posted
    Nanoseconds chunk_cpu = 0;           // CommTimes::cpu of the last chunk
    Gate gate;                           // of a gate op
    std::unique_ptr<GateRecord> record;  // of a gate op: holds a copy of its outputs
    PlacementFunction place;             // of a place op
    const double* loss = nullptr;        // of an op that computes a loss (OpDef::loss)
    bool predicts = false;
    bool offloads = false;
    Update update;
    const T* gradient = nullptr;
    std::vector<Check> checks;
  };
  struct Lane {
    std::vector<Launch> launches;
    std::vector<Span> spans;
    OpId current;
    Nanoseconds cpu_ns = 0;  // CPU time of its thread in the last step
    Nanoseconds behind = 0;  // with a pace: how late its ops were, at most, on the run's clock
  };
  /// State of an op on a lane with an arbiter. `waits`: the ops that must end before this op can be
  /// posted. The thread that finishes the last of them posts this op.
  struct Posting {
    std::vector<OpId> waits;
    std::atomic<size_t> left{0};
    Nanoseconds ready = 0;
    size_t launch = 0;  // the op's index in Lane::launches
  };

  Launch make_launch(LaneId lane, OpId op);
  void add_checks(Launch& launch);
  void add_update(Launch& launch);
  void add_postings();
  void walk(LaneId id, const ProgramRun& spec, Communicator* comm);
  void take_turns(LaneId id, const ProgramRun& spec, Communicator& comm);
  Nanoseconds take_turn(Launch& launch, LaneId id, const ProgramRun& spec, const Turn& turn,
                        Communicator& comm);
  void post(std::vector<OpId> ops, const ProgramRun& spec);
  Nanoseconds before(const Launch& launch, const ProgramRun& spec, Nanoseconds ready);
  Nanoseconds compute(Launch& launch, LaneId lane, const ProgramRun& spec, Nanoseconds ready);
  Nanoseconds transfer(Launch& launch, int64_t chunk, LaneId lane, const ProgramRun& spec,
                       Nanoseconds posted, Communicator& comm);
  void call_kernel(Launch& launch, const ProgramRun& spec);
  void predict(const Launch& launch);
  Nanoseconds after(Launch& launch, LaneId lane, const ProgramRun& spec, Nanoseconds ready,
                    Nanoseconds cpu_before);
  Nanoseconds cpu_now() const { return paced() ? thread_cpu_ns() : 0; }
  Nanoseconds ended(Lane& lane, Nanoseconds ready, Nanoseconds cpu_before);
  void hold_until(Nanoseconds until) const;
  bool paced() const { return options_.pace > 0; }
  void finish(const Launch& launch, const ProgramRun& spec, Nanoseconds end);
  void check(const Launch& launch) const;

  const Plan& plan_;
  const RunOptions& options_;
  const PersistentTensors& persistents_;
  const std::vector<LaneArbiter*>& arbiters_;
  const int64_t rank_;    // among those of its pipeline rank
  const int64_t number_;  // among all ranks
  const kernels::KernelTable<T>& table_;
  RankBuffers buffers_;
  std::unique_ptr<Poison> poison_;
  Progress progress_;
  std::atomic<bool> aborted_{false};
  TokenInputs inputs_;
  std::vector<Lane> lanes_;
  std::vector<Posting> postings_;  // indexed by op; empty when no lane has an arbiter
  LastPlaced placed_;              // the layer that was placed last
  RankReport report_;              // without spans and gates, which report() adds
};

}  // namespace moe
