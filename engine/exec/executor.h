// Executor: the one virtual function that the simulator, the CPU ranks and GPUs share.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/placement/policy.h"
#include "engine/placement/popularity.h"
#include "engine/plan.h"
#include "engine/routing/gate.h"
#include "engine/routing/trace.h"
#include "engine/timeline/metrics.h"
#include "engine/timeline/timeline.h"

namespace moe {

class Processes;
class RoutedBatches;

/// What one MoE layer did in one step, over all ranks.
struct MoeStats {
  int64_t layer = 0;     // block index
  int64_t capacity = 0;  // places an expert and rank
  int64_t dropped = 0;
  uint64_t checksum = 0;
  std::vector<int64_t> counts;  // [ranks * experts]: places used
  std::vector<int64_t> load;    // [experts]: choices of all ranks, before drops
  /// As they are added to the cross entropy, coefficient included; 0 without such a loss.
  double balance_loss = 0, z_loss = 0;
  double min_margin = 0;  // smallest gap between a token's best and next score
};

/// kBF16: floats in memory and on the wire, matrix products of operands rounded to bfloat16 and
/// summed in float; on cuda alone. kF64: on cpu alone.
enum class Precision : uint8_t { kF32, kF64, kBF16 };
/// "f32", "f64", "bf16".
const char* precision_name(Precision precision);
/// Throws UserError with the names there are.
Precision precision_named(std::string_view name);

/// ids and targets of a rank for a step, [batch, seq] each; called once a rank and step, for all
/// ranks of a process from one thread.
using DataSource = std::function<void(int64_t step, int64_t rank, int32_t* ids, int32_t* targets)>;
/// Initial value of an element (of the full tensor) of parameter t (index into parameters(model));
/// a rank asks for its own experts only. Called from the ranks' threads at the same time.
using ParamInit = std::function<double(uint64_t element, uint64_t parameter)>;

/// How a run uses a GPU. Only the order of NCCL's sums may depend on it.
struct DeviceSettings {
  bool urgent_comm = true;            // transfers go before compute where both wait for the device
  int32_t link_blocks = 8;            // of an emulated transfer; each holds a multiprocessor
  int32_t channels = 0;               // of a collective of NCCL's; 0: as NCCL chooses
  int32_t channels_per_net_peer = 0;  // of it to one rank of another machine; 0: as NCCL chooses
};

struct RunOptions {
  int64_t steps = 1;
  int64_t first_step = 0;
  Precision precision = Precision::kF32;
  bool emulate_link = false;  // the plan's cluster is the link
  double timeout_s = kWatchdogSeconds;
  /// One rank a process; null: all ranks are threads of this one. All processes run plans of the
  /// same hash; those of other ranks than 0 get a RunResult that says no more than `stopped`.
  Processes* processes = nullptr;
  DataSource data;
  ParamInit init;
  /// The gate as rank r sees it; called on r's compute thread. Null: the built-in one by name. A
  /// plan with a routing law follows that instead.
  std::function<Gate(int64_t rank)> gate;
  /// What Lina's inference estimates popularity with; null: nothing is estimated.
  std::shared_ptr<const PathProfile> popularity;
  /// Simulated: what tokens choose and what is estimated of it, kept from run to run; null: by the
  /// plan's law and `popularity`.
  std::shared_ptr<RoutedBatches> batches;
  /// RunResult::predictions are kept.
  bool keep_predictions = false;
  /// Parameters alone from a checkpoint, whatever its states and placements; "" = no.
  std::string parameters_from;
  /// The policy of a `place` op (its attr policy) as rank r sees it; called on r's compute thread,
  /// and so is what it returns. All ranks must get the same placements. Null: the built-in one.
  /// Where a policy throws, the old placement stays and the run ends after the step
  /// (RunResult::stop_reason).
  std::function<PlacementFunction(int64_t rank, const std::string& policy)> place;
  /// Called once for each lane that picks by policy, before the run; what it returns is used in
  /// place of Lane::choose: by any thread, one call at a time for the lanes of one arbiter (under
  /// its lock), for all ranks, in a job on rank 0. What it throws ends the run. Null: Lane::choose.
  std::function<Choose(LaneId)> choose;
  /// Runs only the forward of these many extra batches after training and reports their mean loss.
  int64_t eval_batches = 0;
  DataSource eval_data;
  /// Parameters and states: start from / write to (atomically). "" = no. A resumed run goes on with
  /// the step that the file names, whatever first_step says. No part of the paths may be a link.
  std::string resume_from;
  std::string checkpoint_to;
  int64_t checkpoint_every = 0;  // steps; 0: only at the end
  /// Stop at the op that made the first NaN or infinity: every result is read once more, which
  /// costs 2 to 3% of a step of the reference model on one core.
  bool check_finite = true;
  /// An empty trace that takes the routing of the training steps; whole when the run is over,
  /// without steps where no step or MoE layer ran. Null: nothing is recorded.
  std::shared_ptr<Trace> record;
  bool keep_grad_norms = false;  // grad_l2 and projections of the first step
  DeviceSettings device;         // executor cuda
  /// Tests: delay (ns) before an op on a rank; poison freed buffers with NaN.
  std::function<Nanoseconds(int64_t rank, OpId op, int64_t step)> delay_ns;
  bool poison = false;
  bool keep_links = false;  // simulated timelines say what links carry; executed ones always do
  /// Called after every step on rank 0's thread; returning false stops the run (all ranks alike).
  /// The loss of a simulated step is 0.
  std::function<bool(int64_t step, double loss)> on_step;
};

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
inline void count_rows(PlacementRecord& record, const Loads& loads) {
  const Placement in_force = Placement::decode(record.bounds, record.in_force);
  DeviceLoads devices = device_loads(in_force, loads);
  record.computed = std::move(devices.computed);
  record.received = std::move(devices.received);
  record.computed_plain = device_loads(Placement(record.bounds), loads).computed;
}

/// What Lina's inference did with the experts of one MoE layer in a batch.
struct SwapRecord {
  int64_t layer = 0;              // block index
  bool fine_tunes = false;        // there is a phase 2
  bool again = false;             // its placement is another than phase 1's, or there is no phase 1
  std::vector<int32_t> expected;  // phase 1's placement, as Placement::codes; empty: none
  std::vector<int32_t> in_force;
  std::vector<int64_t> rows;  // [ranks]: of tokens that a rank's experts computed
};

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
  std::vector<std::vector<SwapRecord>>
      swaps;                // [batch][layer], of layers whose experts are swapped
  bool stopped = false;     // on_step, an interrupt or stop_reason ended the run early
  std::string stop_reason;  // what failed, where the results so far are good; "" otherwise
};

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

/// run() throws RunError where a run fails, RunFailed where a step of it was over by then.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual RunResult run(const Plan& plan, const RunOptions& options) = 0;
};

}  // namespace moe
