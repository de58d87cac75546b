// The results of a run, per step, layer and rank; the same type for real and simulated runs. A
// simulation computes no numbers, so it has no losses, norms, predictions or digest. How a
// RunResult is filled is in exec/run_loop.cpp.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <type_traits>
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
  int64_t capacity = 0;  // slots per expert and rank
  int64_t dropped = 0;
  uint64_t checksum = 0;
  std::vector<int64_t> counts;  // [micro-batches * ranks * experts]: slots used
  std::vector<int64_t> load;    // [experts]: choices of all ranks, before drops
  /// The values that are added to the cross entropy, with their coefficients; 0 when the model has
  /// no such loss.
  double balance_loss = 0, z_loss = 0;
  double min_margin = 0;  // smallest gap between a token's best and second-best score
};
constexpr auto fields_of(const MoeStats*) {
  return field_table<MoeStats>(
      field("layer", &MoeStats::layer, "number of the layer's block").counted_from_one(),
      field("capacity", &MoeStats::capacity, "slots per expert and rank"),
      field("dropped", &MoeStats::dropped, "choices that found no free slot"),
      field("checksum", &MoeStats::checksum, "checksum of all assignments"),
      field("counts", &MoeStats::counts, "used slots per micro-batch, rank and expert"),
      field("load", &MoeStats::load, "choices of all ranks per expert, before drops"),
      field("balance_loss", &MoeStats::balance_loss, "load balance loss, with its coefficient"),
      field("z_loss", &MoeStats::z_loss, "router z-loss, with its coefficient"),
      field("min_margin", &MoeStats::min_margin,
            "smallest gap between a token's best and second-best score"));
}

/// The placement of one MoE layer in a step. Placements are stored as Placement::codes.
struct PlacementRecord {
  int64_t layer = 0;  // block index
  /// Whether it is in force in one micro-batch, `micro`, from whose loads it was made; else in a
  /// step.
  bool of_micro_batch = false;
  int64_t micro = 0;
  PlacementBounds bounds;
  std::vector<int32_t> in_force;
  std::vector<int32_t> next;  // the placement of the next step
  /// Indexed by rank: rows that it computed in the step, rows that it received from other
  /// ranks, and rows that it would have computed under plain expert parallelism, which is
  /// Placement(bounds).
  std::vector<int64_t> computed, received, computed_plain;
};
/// Fills computed, received and computed_plain from the rows that each source sent to each expert.
/// group: the ranks that hold all experts, in each of which the placement holds.
inline void count_rows(PlacementRecord& record, const ExpertCounts& loads, const Group& group) {
  const Placement in_force = Placement::decode(record.bounds, record.in_force);
  DeviceLoads devices = device_loads(in_force, loads, group);
  record.computed = std::move(devices.computed);
  record.received = std::move(devices.received);
  record.computed_plain = device_loads(Placement(record.bounds), loads, group).computed;
}

/// What Lina's inference did with the experts of one MoE layer in a batch. Phase 1 places experts
/// by their expected popularity; phase 2 corrects that placement when the gate's choices are known.
struct OffloadRecord {
  int64_t layer = 0;              // block index
  bool fine_tunes = false;        // whether phase 2 ran
  bool again = false;             // phase 2 changed the placement, or there was no phase 1
  std::vector<int32_t> expected;  // phase 1's placement, as Placement::codes; empty: no phase 1
  std::vector<int32_t> in_force;
  std::vector<int64_t> rows;  // [ranks]: rows that a rank's experts computed
};
constexpr auto fields_of(const OffloadRecord*) {
  return carried_table(&OffloadRecord::layer, &OffloadRecord::fine_tunes, &OffloadRecord::again,
                       &OffloadRecord::expected, &OffloadRecord::in_force, &OffloadRecord::rows);
}

/// How fast the machine was at a step, and what others used of it (exec/results/machine_state.h).
struct MachineState {
  Nanoseconds reference_ns = 0;
  double others = 0;
};
constexpr auto fields_of(const MachineState*) {
  return field_table<MachineState>(
      field("reference_ms", &MachineState::reference_ns,
            "time of a fixed piece of work at most 50 ms before the step's begin")
          .in(kMilliseconds),
      field("others", &MachineState::others,
            "share of all cores' time that other processes used or the hypervisor took, from the "
            "begin of the run to about the begin of the step"));
}

struct RunResult {
  Provenance provenance = Provenance::kSimulated;
  std::vector<Timeline> timelines;  // per step; times are relative to the step's common start
  std::vector<Metrics> metrics;     // per step
  std::vector<LowerBound> bounds;   // per step; of simulated runs only
  /// RoutedStep::imbalance() of each step; of simulated runs with a routing model only.
  std::vector<double> load_imbalance;
  /// Cross entropy of each step, as the mean over the global batch, before the step's update.
  std::vector<double> losses;
  /// [step][MTP layer]: what is added to the cross entropy, with its factor.
  std::vector<std::vector<double>> mtp_losses;
  std::vector<std::vector<MoeStats>> moe;  // [step][layer]
  double eval_loss = 0;                    // valid when the run was not stopped
  /// [step][token of all ranks]: the most probable next token, with InferOptions::keep_predictions.
  std::vector<std::vector<int32_t>> predictions;
  std::map<std::string, double> grad_l2, grad_projection;    // first step, reduced over ranks
  std::map<std::string, double> param_l2, param_projection;  // after the last step
  uint64_t digest = 0;            // FNV-1a 64 over all parameters' bits in reference order
  Bytes peak_bytes = 0;           // bytes that the executor allocated per rank
  int64_t launches_per_step = 0;  // kernels of all ranks in a recorded step; 0: none was recorded
  /// [rank][lane]: the ops of the last step, in the order in which they began.
  std::vector<std::vector<std::vector<OpId>>> executed;
  /// [step][layer], of layers with a placement.
  std::vector<std::vector<PlacementRecord>> placements;
  std::vector<std::vector<OffloadRecord>>
      offloads;          // [batch][layer], of layers with offloaded experts
  bool stopped = false;  // ended early by on_step, an interrupt or stop_reason
  /// What failed, when the results of the steps before the failure are valid; "" otherwise. In a
  /// simulated run, which goes on: why a step could not run (RoutedStep::no_room()).
  std::string stop_reason;
  bool wrong_input = false;  // what failed is the user's, for example a gate (UserError)
  std::vector<std::vector<RankStats>> ranks;  // [step][rank]
  std::vector<MachineState> machine;          // per step; only of ranks that are CPU threads
};
constexpr auto fields_of(const RunResult*) {
  constexpr const char* kNamed = "results have these with the plan's names";
  return field_table<RunResult>(
      field("provenance", &RunResult::provenance, "simulated, emulated or measured"),
      field("metrics", &RunResult::metrics, "times of every step"),
      field("losses", &RunResult::losses, "cross entropy of every step, before its update"),
      field("mtp_losses", &RunResult::mtp_losses,
            "[step][MTP layer]: what is added to the cross entropy, with mtp_factor"),
      field("moe", &RunResult::moe, "[step][layer], moe.MoeStats each"),
      field("eval_loss", &RunResult::eval_loss, "mean loss on held-out batches"),
      field("grad_l2", &RunResult::grad_l2,
            "L2 norm of each parameter's gradient in the first step"),
      field("grad_projection", &RunResult::grad_projection,
            "sum of x[i] * (i mod 13 - 6) over each parameter's gradient x in the first step"),
      field("param_l2", &RunResult::param_l2, "L2 norm of each parameter after the last step"),
      field("param_projection", &RunResult::param_projection,
            "sum of x[i] * (i mod 13 - 6) over each parameter x after the last step"),
      field("digest", &RunResult::digest, "hash of all parameters' bits"),
      field("peak_bytes", &RunResult::peak_bytes, "bytes that the executor allocated per rank"),
      field("launches_per_step", &RunResult::launches_per_step,
            "kernels that a recorded step launches on the device, for all ranks on it; 0 if no "
            "step was recorded"),
      field("stopped", &RunResult::stopped, "whether the run was interrupted or failed"),
      field("stop_reason", &RunResult::stop_reason,
            "what failed during the run; the results of the steps before are valid"),
      field("wrong_input", &RunResult::wrong_input,
            "whether the recipe or its input is the cause of stop_reason, for example a gate that "
            "fails; the exit status is then 1"),
      field("ranks", &RunResult::ranks, "[step][rank], moe.RankStats each"),
      field("machine_state", &RunResult::machine, "state of the machine at every step"),
      internal(&RunResult::timelines, kNamed), internal(&RunResult::bounds, kNamed),
      internal(&RunResult::load_imbalance, "results have its mean"),
      internal(&RunResult::executed, kNamed), internal(&RunResult::placements, kNamed),
      internal(&RunResult::offloads, "inference results are made of it"),
      internal(&RunResult::predictions, "inference results are made of it"));
}

/// Error of a run that failed after at least one step by an Error (RunError or UserError). `so_far`
/// has the results of the finished steps; it lacks what is only computed at the end (digest,
/// parameters, peak_bytes). In a job it is thrown on rank 0.
template <class Error>
class FailedAfterSteps : public Error {
 public:
  FailedAfterSteps(const Error& error, RunResult result) : Error(error) {
    result.stopped = true;
    result.stop_reason = error.what();
    result.wrong_input = std::is_same_v<Error, UserError>;
    so_far = std::make_shared<RunResult>(std::move(result));
  }
  std::shared_ptr<RunResult> so_far;
};
using RunFailed = FailedAfterSteps<RunError>;
using InputFailed = FailedAfterSteps<UserError>;

}  // namespace moe
