// What a run leaves, by step, layer and rank: one value for real and simulated runs. A simulation
// computes no numbers, so it has no losses, norms, predictions or digest.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/field.h"
#include "engine/exec/results/rank_stats.h"
#include "engine/placement/policy.h"
#include "engine/timeline/metrics.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// What one MoE layer did in one step, over all ranks.
struct MoeStats {
  int64_t layer = 0;     // block index
  int64_t capacity = 0;  // places per expert and rank
  int64_t dropped = 0;
  uint64_t checksum = 0;
  std::vector<int64_t> counts;  // [ranks * experts]: places used
  std::vector<int64_t> load;    // [experts]: choices of all ranks, before drops
  /// As they are added to the cross entropy, coefficient included; 0 without such a loss.
  double balance_loss = 0, z_loss = 0;
  double min_margin = 0;  // smallest gap between a token's best and next score
};
constexpr auto fields_of(const MoeStats*) {
  return field_table<MoeStats>(
      field("layer", &MoeStats::layer, "the block").counted_from_one(),
      field("capacity", &MoeStats::capacity, "places per expert and rank"),
      field("dropped", &MoeStats::dropped, "choices without a place"),
      field("checksum", &MoeStats::checksum, "of all assignments"),
      field("counts", &MoeStats::counts, "places used, by rank and expert"),
      field("load", &MoeStats::load, "choices of all ranks before drops, by expert"),
      field("balance_loss", &MoeStats::balance_loss, "coefficient included"),
      field("z_loss", &MoeStats::z_loss, "coefficient included"),
      field("min_margin", &MoeStats::min_margin,
            "smallest gap between a token's best and next score"));
}

/// What the placement of one MoE layer was in a step, as Placement::codes.
struct PlacementRecord {
  int64_t layer = 0;  // block index
  PlacementBounds bounds;
  std::vector<int32_t> in_force;
  std::vector<int32_t> next;  // of the next step
  /// By device: the rows that it computed in the step and received from others, and those that it
  /// would have computed under plain expert parallelism, as Placement(bounds) is.
  std::vector<int64_t> computed, received, computed_plain;
};
/// Fills them from the rows that sources sent to experts.
inline void count_rows(PlacementRecord& record, const ExpertCounts& loads) {
  const Placement in_force = Placement::decode(record.bounds, record.in_force);
  DeviceLoads devices = device_loads(in_force, loads);
  record.computed = std::move(devices.computed);
  record.received = std::move(devices.received);
  record.computed_plain = device_loads(Placement(record.bounds), loads).computed;
}

/// What Lina's inference did with the experts of one MoE layer in a batch.
struct OffloadRecord {
  int64_t layer = 0;              // block index
  bool fine_tunes = false;        // there is a phase 2
  bool again = false;             // its placement is another than phase 1's, or there is no phase 1
  std::vector<int32_t> expected;  // phase 1's placement, as Placement::codes; empty: none
  std::vector<int32_t> in_force;
  std::vector<int64_t> rows;  // [ranks]: of tokens that a rank's experts computed
};
constexpr auto fields_of(const OffloadRecord*) {
  return carried_table(&OffloadRecord::layer, &OffloadRecord::fine_tunes, &OffloadRecord::again,
                       &OffloadRecord::expected, &OffloadRecord::in_force, &OffloadRecord::rows);
}

struct RunResult {
  Provenance provenance = Provenance::kSimulated;
  std::vector<Timeline> timelines;  // a step; times relative to the step's common start
  std::vector<Metrics> metrics;     // a step
  /// Cross entropy, mean over the global batch, before the step's update.
  std::vector<double> losses;
  std::vector<std::vector<MoeStats>> moe;  // [step][layer]
  double eval_loss = 0;                    // good where the run was not stopped
  /// [step][token of all ranks]: the most probable next token; of keep_predictions.
  std::vector<std::vector<int32_t>> predictions;
  std::map<std::string, double> grad_l2, grad_projection;    // first step, reduced over ranks
  std::map<std::string, double> param_l2, param_projection;  // after the last step
  uint64_t digest = 0;   // FNV-1a 64 over all parameters' bits in reference order
  Bytes peak_bytes = 0;  // bytes that the executor allocated for a rank
  std::vector<std::vector<std::vector<OpId>>> executed;  // [rank][lane]: as begun, last step
  std::vector<std::vector<PlacementRecord>> placements;  // [step][layer], of layers with one
  std::vector<std::vector<OffloadRecord>>
      offloads;             // [batch][layer], of layers whose experts are offloaded
  bool stopped = false;     // on_step, an interrupt or stop_reason ended the run early
  std::string stop_reason;  // what failed, where the results so far are good; "" otherwise
  std::vector<std::vector<RankStats>> ranks;  // [step][rank]
};
constexpr auto fields_of(const RunResult*) {
  constexpr const char* kNamed = "results have it with the plan's names";
  return field_table<RunResult>(
      field("provenance", &RunResult::provenance, "simulated, emulated or measured"),
      field("metrics", &RunResult::metrics, "times of every step"),
      field("losses", &RunResult::losses, "cross entropy of every step, before its update"),
      field("moe", &RunResult::moe, "[step][layer], moe.MoeStats each"),
      field("eval_loss", &RunResult::eval_loss, "on held-out text"),
      field("grad_l2", &RunResult::grad_l2, "of the first step, by parameter"),
      field("grad_projection", &RunResult::grad_projection, "of the first step, by parameter"),
      field("param_l2", &RunResult::param_l2, "after the last step, by parameter"),
      field("param_projection", &RunResult::param_projection, "after the last step, by parameter"),
      field("digest", &RunResult::digest, "hash of all parameters' bits"),
      field("peak_bytes", &RunResult::peak_bytes, "that the executor allocated for a rank"),
      field("stopped", &RunResult::stopped, "whether the run was interrupted or failed"),
      field("stop_reason", &RunResult::stop_reason,
            "what failed in the middle of the run; the steps before are good"),
      field("ranks", &RunResult::ranks, "[step][rank], moe.RankStats each"),
      internal(&RunResult::timelines, kNamed), internal(&RunResult::executed, kNamed),
      internal(&RunResult::placements, kNamed),
      internal(&RunResult::offloads, "inference results are made of it"),
      internal(&RunResult::predictions, "inference results are made of it"));
}

/// What failed in a run whose steps before are good, and those: `so_far` lacks all that is said of
/// the end (digest, parameters, peak_bytes). In a job thrown on rank 0.
class RunFailed : public RunError {
 public:
  RunFailed(const RunError& error, RunResult result) : RunError(error) {
    result.stopped = true;
    result.stop_reason = error.what();
    so_far = std::make_shared<RunResult>(std::move(result));
  }
  std::shared_ptr<RunResult> so_far;
};

}  // namespace moe
