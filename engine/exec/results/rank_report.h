// What one rank did in a step, for rank 0 to put together: of a rank of this process, or of another
// process's, whose report comes as bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/job/processes.h"
#include "engine/exec/parameters.h"
#include "engine/exec/results/gate_stats.h"

namespace moe {

/// One run of the program, a training step or the forward of a batch: the same for all threads,
/// written while they wait.
struct StepSpec {
  int64_t step = 0;
  uint32_t epoch = 0;  // counts steps, from 1
  bool train = true;   // false: the forward's ops only
  bool measure_gradients = false;
  Nanoseconds start = 0;  // common start on the run's clock
};

struct RankReport {
  RankStats stats;
  std::vector<std::vector<Span>> spans;  // by lane
  std::vector<const GateRecord*> gates;  // of the rank, until its next step
  std::vector<RouterLoss> router_losses;
  std::vector<OffloadRecord> offloads;      // by layer, of layers whose experts are offloaded
  std::vector<int32_t> predictions;         // [tokens], with InferOptions::keep_predictions
  std::vector<PlacementRecord> placements;  // of ranks that are here; those of others are the same
  std::string policy_failure;               // of the first placement policy that failed
  std::vector<Measure> gradients;  // by parameter in reference order, with measure_gradients
};
/// What travels to rank 0.
constexpr auto fields_of(const RankReport*) {
  return field_table<RankReport>(
      carried(&RankReport::stats), carried(&RankReport::spans),
      internal(&RankReport::gates, "they travel into records of the plan's gates"),
      carried(&RankReport::router_losses), carried(&RankReport::offloads),
      carried(&RankReport::predictions),
      internal(&RankReport::placements, "they are the same on all ranks"),
      carried(&RankReport::policy_failure), carried(&RankReport::gradients));
}

/// Ranks in other processes, as rank 0 sees them: their reports, and a copy of the memory that
/// outlives a step where somebody asks for it. All functions are collective. They throw RunError as
/// Processes does.
class Peers {
 public:
  /// own: this rank's. Throws RunError naming a rank whose plan has another hash.
  Peers(Processes& processes, const Plan& plan, const PersistentTensors& persistents,
        const RankBuffers& own, Bytes element_bytes);

  /// By rank; on others than rank 0 null but for their own.
  const AllBuffers& buffers() const { return buffers_; }
  /// A common time to begin with, on this process's clock.
  Nanoseconds start();
  /// On rank 0 all reports by rank (gates hold until the next call) and in buffers() the
  /// placements; elsewhere the own one.
  std::vector<RankReport> gather(RankReport own);
  /// Rank 0's answer.
  bool agree(bool go_on);
  int64_t agree(int64_t value);
  /// buffers()' persistent tensors on rank 0 from all ranks.
  void gather_persistent();
  /// Every rank's persistent tensors from rank 0's buffers().
  void spread_persistent();

 private:
  std::string pack(const RankReport& report) const;
  RankReport unpack(const std::string& bytes, int64_t rank);
  void add_records(const RankReport& own);

  Processes& processes_;
  const Plan& plan_;
  const PersistentTensors& persistents_;
  std::vector<std::unique_ptr<RankBuffers>> copies_;  // by rank; on rank 0
  AllBuffers buffers_;
  std::vector<std::vector<std::unique_ptr<GateRecord>>> records_;  // by rank; on rank 0
};

}  // namespace moe
