// What one rank did in a step, for rank 0 to combine: from a rank of this process, or as bytes from
// another process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/job/processes.h"
#include "engine/exec/parameters.h"
#include "engine/exec/results/gate_stats.h"

namespace moe {

/// One run of the program: a training step or the forward of a batch. The same for all threads, and
/// written while they wait.
struct ProgramRun {
  int64_t step = 0;
  uint32_t epoch = 0;  // counts steps, from 1
  bool train = true;   // false: the forward's ops only
  bool measure_gradients = false;
  Nanoseconds start = 0;  // when all ranks start, on the run's clock
};

struct RankReport {
  RankStats stats;
  std::vector<std::vector<Span>> spans;  // indexed by lane
  std::vector<const GateRecord*> gates;  // valid until the rank's next step
  std::vector<RouterLoss> router_losses;
  std::vector<double> mtp_losses;           // by MTP layer
  std::vector<OffloadRecord> offloads;      // in layer order, of layers with offloaded experts
  std::vector<int32_t> predictions;         // [tokens], with InferOptions::keep_predictions
  std::vector<PlacementRecord> placements;  // not sent to rank 0: the same on all ranks
  std::string policy_failure;               // message of the first placement policy that failed
  std::vector<Measure> gradients;           // per parameter, with ProgramRun::measure_gradients
};
/// The members that are sent to rank 0.
constexpr auto fields_of(const RankReport*) {
  return field_table<RankReport>(
      carried(&RankReport::stats), carried(&RankReport::spans),
      internal(&RankReport::gates, "sent separately, into records of the plan's gates"),
      carried(&RankReport::router_losses), carried(&RankReport::mtp_losses),
      carried(&RankReport::offloads), carried(&RankReport::predictions),
      internal(&RankReport::placements, "they are the same on all ranks"),
      carried(&RankReport::policy_failure), carried(&RankReport::gradients));
}

/// Adds the loss that an op (OpDef::loss) has computed of a micro-batch; those of a kind and layer
/// are added up in the order of the calls.
void add_loss(const Graph& graph, OpId op, double loss, RankReport& report);

/// The ranks of the other processes of a job, as rank 0 uses them: their reports and, on request, a
/// copy of their memory that persists across steps. All functions are collective, and throw
/// RunError as Processes does.
class Peers {
 public:
  /// `own` is the memory of this process's rank. Throws RunError, which names the rank, when a
  /// rank's plan has another hash.
  Peers(Processes& processes, const Plan& plan, const std::vector<PersistentTensors>& persistents,
        const RankBuffers& own, Bytes element_bytes);

  /// Indexed by rank. On rank 0 every entry is set; on another rank only its own entry is, and the
  /// rest are null.
  const AllBuffers& buffers() const { return buffers_; }
  /// Returns a time at which all ranks begin the step, on this process's clock.
  Nanoseconds start();
  /// On rank 0, returns all reports in rank order (their gate records are valid until the next
  /// call) and writes the ranks' placements into buffers(). On other ranks, returns only `own`.
  std::vector<RankReport> gather(RankReport own);
  /// Returns the value that rank 0 passed.
  bool agree(bool go_on);
  int64_t agree(int64_t value);
  /// Copies all ranks' persistent tensors into rank 0's buffers().
  void gather_persistent();
  /// Copies every rank's persistent tensors from rank 0's buffers() to that rank.
  void spread_persistent();

 private:
  std::string pack(const RankReport& report) const;
  RankReport unpack(const std::string& bytes, int64_t rank);
  const std::vector<PlacedLayer>& placed(int64_t rank) const {
    return persistents_[static_cast<size_t>(plan_.program(rank).pipeline_rank)].placed;
  }

  Processes& processes_;
  const Plan& plan_;
  const std::vector<PersistentTensors>& persistents_;  // by pipeline rank
  std::vector<std::unique_ptr<RankBuffers>> copies_;   // indexed by rank; on rank 0 only
  AllBuffers buffers_;
  std::vector<std::vector<std::unique_ptr<GateRecord>>> records_;  // indexed by rank; on rank 0
};

}  // namespace moe
