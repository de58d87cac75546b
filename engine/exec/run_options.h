// What a caller chooses about a run of a plan, in groups by what it is about. None of it changes
// the plan. The simulator reads steps, first_step, links_of_step, on_step and policies.place alone.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/base/field.h"
#include "engine/base/ids.h"
#include "engine/base/limits.h"
#include "engine/base/units.h"
#include "engine/placement/path_profile.h"
#include "engine/placement/policy.h"
#include "engine/routing/gate.h"
#include "engine/routing/trace.h"
#include "engine/schedule/schedule.h"

namespace moe {

class Processes;
class RoutedBatches;

/// kBF16: floats in memory and on the wire, matrix products of operands rounded to bfloat16 and
/// summed in float; on cuda alone. kF64: on cpu alone.
enum class Precision : uint8_t { kF32, kF64, kBF16 };
constexpr std::array<const char*, 3> names_of(Precision) {
  return {"f32", "f64", "bf16"};
}

/// ids and targets of a rank for a step, [batch, seq] each; called once per rank and step, for all
/// ranks of a process from one thread.
using DataSource = std::function<void(int64_t step, int64_t rank, int32_t* ids, int32_t* targets)>;
/// Initial value of an element (of the full tensor) of parameter t (index into parameters(model));
/// a rank asks for its own experts only. Called from the ranks' threads at the same time.
using ParamInit = std::function<double(uint64_t element, uint64_t parameter)>;

/// Files of parameters and states; "" = none. No part of a path may be a link.
struct Checkpoints {
  /// The run starts from this file, at the step that it names, whatever first_step says.
  std::string resume_from;
  std::string write_to;     // at the end, and every `every_steps`; replaced as a whole
  int64_t every_steps = 0;  // 0: only at the end
};
constexpr auto fields_of(const Checkpoints*) {
  return field_table<Checkpoints>(
      field("resume_from", &Checkpoints::resume_from,
            "a checkpoint of the same model, in the output folder"),
      field("checkpoint_to", &Checkpoints::write_to, "a file of the output folder"),
      field("checkpoint_every", &Checkpoints::every_steps, "steps; 0: at the end").from(0, 1e9));
}

/// What training alone has.
struct TrainOptions {
  Checkpoints checkpoints;
  bool keep_grad_norms = false;  // RunResult::grad_l2 and grad_projection, of the first step
  /// After the last step these many extra batches run forward only; RunResult::eval_loss is their
  /// mean loss. Batches need eval_data.
  int64_t eval_batches = 0;
  DataSource eval_data;
};
constexpr auto fields_of(const TrainOptions*) {
  return field_table<TrainOptions>(
      inlined("", &TrainOptions::checkpoints),
      field("keep_grad_norms", &TrainOptions::keep_grad_norms),
      field("eval_batches", &TrainOptions::eval_batches, "held-out batches after training")
          .from(0, 1e6),
      internal(&TrainOptions::eval_data, "a function; set with the run's data"));
}

/// What inference alone has.
struct InferOptions {
  /// What Lina's inference estimates popularity with; null: nothing is estimated.
  std::shared_ptr<const PathProfile> popularity;
  /// Simulated: what tokens choose and what is estimated of it, kept from run to run; null: by the
  /// plan's routing and `popularity`.
  std::shared_ptr<RoutedBatches> batches;
  bool keep_predictions = false;  // RunResult::predictions
  /// The run starts from the parameters alone of this checkpoint, whatever its states and
  /// placements; "" = none.
  std::string parameters_from;
};

/// The gate as a rank sees it; called on the rank's compute thread.
using RankGates = std::function<Gate(int64_t rank)>;
/// The policy of a `place` op (its attr policy) as a rank sees it; called on the rank's compute
/// thread, and so is what it returns. All ranks must get the same placements.
using RankPlacements = std::function<PlacementFunction(int64_t rank, const std::string& policy)>;

/// Functions that decide in place of what is built in; each may be null.
struct Policies {
  /// Null: the gate that the op names. A plan with a routing model follows that instead.
  RankGates gate;
  /// Null: the built-in policy. Where a policy throws, the old placement stays and the run ends
  /// after the step (RunResult::stop_reason).
  RankPlacements place;
  /// Called once for each lane that picks by policy, before the run; what it returns is used in
  /// place of Lane::choose: by any thread, one call at a time for the lanes of one arbiter (under
  /// its lock), for all ranks, in a job on rank 0. What it throws ends the run. Null: Lane::choose.
  std::function<Choose(LaneId)> choose;
};

/// How NCCL uses a GPU; 0: as NCCL chooses.
struct NcclSettings {
  int32_t channels = 0;
  int32_t channels_per_net_peer = 0;
};
constexpr auto fields_of(const NcclSettings*) {
  return field_table<NcclSettings>(
      field("channels", &NcclSettings::channels,
            "of a collective, a power of two: its blocks on the GPU; as NCCL chooses")
          .from(1, 32),
      field("channels_per_net_peer", &NcclSettings::channels_per_net_peer,
            "of a collective to one rank of another machine, a power of two; as NCCL chooses")
          .from(1, 32));
}

/// How a run uses a GPU. Only the order of NCCL's sums may depend on it.
struct DeviceSettings {
  bool urgent_comm = true;  // transfers go before compute where both wait for the device
  int32_t link_blocks = 8;
  NcclSettings nccl;
};
constexpr auto fields_of(const DeviceSettings*) {
  return field_table<DeviceSettings>(
      field("urgent_comm", &DeviceSettings::urgent_comm),
      field("link_blocks", &DeviceSettings::link_blocks,
            "cuda: blocks of an emulated transfer, a power of two, each with a multiprocessor to "
            "itself")
          .from(1, 32),
      field("nccl", &DeviceSettings::nccl, "cuda, one rank per process: how NCCL uses the GPU"));
}

/// What tests do to a real run.
struct TestHooks {
  std::function<Nanoseconds(int64_t rank, OpId op, int64_t step)> delay_ns;  // before an op
  bool poison = false;  // freed buffers are filled with NaN
};

struct RunOptions {
  int64_t steps = 1;
  int64_t first_step = 0;
  Precision precision = Precision::kF32;
  bool emulate_link = false;  // the plan's cluster is the link
  double timeout_s = kWatchdogSeconds;
  /// One rank per process; null: all ranks are threads of this one. All processes run plans of the
  /// same hash; those of other ranks than 0 get a RunResult that says no more than `stopped`.
  Processes* processes = nullptr;
  DataSource data;
  ParamInit init;  // null: reference_init
  /// Stop at the op that made the first NaN or infinity: every result is read once more, which
  /// costs 2 to 3% of a step of the reference model on one core.
  bool check_finite = true;
  /// An empty trace that takes the routing of the steps, but not of eval_batches; whole when the
  /// run is over, without steps where no step or MoE layer ran. Null: nothing is recorded.
  std::shared_ptr<Trace> record;
  /// The step of the run, from 0, whose simulated timeline says what links carry; -1: none. Where
  /// one step stands for all, that one. Executed timelines always say it.
  int64_t links_of_step = -1;
  /// Called after every step on rank 0's thread; returning false stops the run (all ranks alike).
  /// The loss of a simulated step is 0.
  std::function<bool(int64_t step, double loss)> on_step;

  TrainOptions train;
  InferOptions infer;
  Policies policies;
  DeviceSettings device;  // executor cuda
  TestHooks test;
};

constexpr auto fields_of(const RunOptions*) {
  constexpr const char* kFunction = "a function or an object; set by the caller";
  return field_table<RunOptions>(
      field("steps", &RunOptions::steps,
            "training steps; with resume_from so many after the checkpoint's")
          .from(1, 1e9),
      field("first_step", &RunOptions::first_step),
      field("precision", &RunOptions::precision,
            "f64: on cpu; bf16: on cuda, activations in bfloat16, parameters and sums in f32"),
      field("emulate_link", &RunOptions::emulate_link),
      field("timeout_s", &RunOptions::timeout_s, "how long a collective waits for a peer")
          .from(0.01, 1e6),
      field("check_finite", &RunOptions::check_finite,
            "stop at the op that made the first NaN or infinity; it reads every result once more"),
      field("links_of_step", &RunOptions::links_of_step), inlined("", &RunOptions::train),
      inlined("", &RunOptions::device), internal(&RunOptions::processes, kFunction),
      internal(&RunOptions::data, kFunction), internal(&RunOptions::init, kFunction),
      internal(&RunOptions::record, kFunction), internal(&RunOptions::on_step, kFunction),
      internal(&RunOptions::infer, kFunction), internal(&RunOptions::policies, kFunction),
      internal(&RunOptions::test, "tests alone have it"));
}

}  // namespace moe
