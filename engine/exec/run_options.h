// The options of a run of a plan, grouped by subject. No option changes the plan. The simulator
// uses only steps, first_step, links_of_step, on_step, policies.place and infer.popularity.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

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

/// kF64: only on the executor cpu. kBF16: only on the executor cuda; activations are stored and
/// transferred in bfloat16, parameters and sums are float.
enum class Precision : uint8_t { kF32, kF64, kBF16 };
constexpr std::array<const char*, 3> names_of(Precision) {
  return {"f32", "f64", "bf16"};
}

/// Writes the token ids and target ids of a rank for a step, [batch, seq] each. Called once per
/// rank and step; one thread calls it for all ranks of a process.
using DataSource = std::function<void(int64_t step, int64_t rank, int32_t* ids, int32_t* targets)>;
/// Returns the initial value of an element (its index in the full tensor) of a parameter (its index
/// in Model::parameters). For a parameter of experts, a rank calls it only for the experts that it
/// holds. The ranks' threads call it at the same time.
using ParamInit = std::function<double(uint64_t element, uint64_t parameter)>;

/// Paths of checkpoint files; "" = none. No part of a path may be a symbolic link.
struct Checkpoints {
  /// The run starts from this file, at the step that the file names; first_step is ignored.
  std::string resume_from;
  std::string write_to;     // written at the end and every `every_steps`; replaced in one rename
  int64_t every_steps = 0;  // 0: only at the end
};
constexpr auto fields_of(const Checkpoints*) {
  return field_table<Checkpoints>(
      field("resume_from", &Checkpoints::resume_from,
            "a checkpoint of the same model, in the output folder"),
      field("checkpoint_to", &Checkpoints::write_to, "a file in the output folder"),
      field("checkpoint_every", &Checkpoints::every_steps,
            "steps between checkpoints; 0: only at the end")
          .from(0, 1e9));
}

/// Options of training.
struct TrainOptions {
  Checkpoints checkpoints;
  /// Whether RunResult::grad_l2 and grad_projection are filled, for the first step.
  bool keep_grad_norms = false;
  /// Number of extra batches that run forward only after the last step; RunResult::eval_loss is
  /// their mean loss. More than 0 requires eval_data.
  int64_t eval_batches = 0;
  DataSource eval_data;
  /// Where RunOptions::data takes tokens from; a checkpoint keeps it, and a run that resumes one of
  /// another source is refused.
  std::string tokens;
  /// Called on rank 0 after the run with the final values, numbered as in RunOptions::values.
  /// Null: not called.
  std::function<void(const ParamInit& values)> keep_parameters;
};
constexpr auto fields_of(const TrainOptions*) {
  return field_table<TrainOptions>(
      inlined("", &TrainOptions::checkpoints),
      field("keep_grad_norms", &TrainOptions::keep_grad_norms),
      field("eval_batches", &TrainOptions::eval_batches,
            "number of held-out batches that are evaluated after training")
          .from(0, 1e6),
      internal(&TrainOptions::eval_data, "a function; set with the run's data"),
      internal(&TrainOptions::tokens, "set with the run's data"),
      internal(&TrainOptions::keep_parameters, "a function; set by the caller"));
}

/// Options of inference.
struct InferOptions {
  /// The profile of expert paths with which Lina's inference estimates popularity; null: popularity
  /// is not estimated.
  std::shared_ptr<const PathProfile> popularity;
  bool keep_predictions = false;  // fill RunResult::predictions
  /// The run starts from the parameters of this checkpoint file, whose states and placements are
  /// ignored; "" = none.
  std::string parameters_from;
};

/// Returns the function that a rank uses as its gates; called on the rank's compute thread.
using RankGates = std::function<Gate(int64_t rank)>;
/// Returns the placement policy that a rank uses for a `place` op whose attr policy is `policy`.
/// This function and the policy that it returns are called on the rank's compute thread. All ranks
/// must get the same placements.
using RankPlacements = std::function<PlacementFunction(int64_t rank, const std::string& policy)>;

/// Functions that replace gates, placement policies and lane policies; each may be null.
struct Policies {
  /// Null: the built-in gate that the op names. Not called when the plan has a routing model that
  /// replaces all gates (RoutingModel::runs_gate).
  RankGates gate;
  /// Null: the built-in policy that the op names. When a policy throws, the previous placement
  /// stays in force and the run ends after the step (RunResult::stop_reason).
  RankPlacements place;
  /// Called once, before the run, for each lane with Pick::kPolicy. The policy function that
  /// it returns replaces Lane::choose. Any thread may call that function, one call at a time for
  /// the lanes of one arbiter (under the arbiter's lock), for all ranks; in a job on rank 0. An
  /// exception that it throws ends the run. Null: Lane::choose.
  std::function<Choose(LaneId)> choose;
};

/// How NCCL uses a GPU; 0 means that NCCL chooses the number.
struct NcclSettings {
  int32_t channels = 0;
  int32_t channels_per_net_peer = 0;
};
constexpr auto fields_of(const NcclSettings*) {
  return field_table<NcclSettings>(
      field("channels", &NcclSettings::channels,
            "channels of a collective, which are its thread blocks on the GPU; a power of two; "
            "default: as NCCL chooses")
          .from(1, 32),
      field("channels_per_net_peer", &NcclSettings::channels_per_net_peer,
            "channels of a collective to one rank of another machine; a power of two; default: as "
            "NCCL chooses")
          .from(1, 32));
}

/// How a run uses a GPU. Of the computed numbers, these settings can change only NCCL's sums, by
/// another order of adding.
struct DeviceSettings {
  bool urgent_comm = true;  // transfers run before compute when both wait for the device
  int32_t link_blocks = 8;
  NcclSettings nccl;
};
constexpr auto fields_of(const DeviceSettings*) {
  return field_table<DeviceSettings>(
      field("urgent_comm", &DeviceSettings::urgent_comm),
      field("link_blocks", &DeviceSettings::link_blocks,
            "executor cuda: thread blocks of an emulated transfer, each on a multiprocessor of its "
            "own; a power of two")
          .from(1, 32),
      field("nccl", &DeviceSettings::nccl,
            "executor cuda with one rank per process: how NCCL uses the GPU"));
}

/// Lets tests interfere with an executed run.
struct TestHooks {
  /// Returns for how long the rank sleeps before it begins an op.
  std::function<Nanoseconds(int64_t rank, OpId op, int64_t step)> delay_ns;
  bool poison = false;  // class Poison in buffers.h
};
constexpr auto fields_of(const TestHooks*) {
  return field_table<TestHooks>(
      internal(&TestHooks::delay_ns, "only tests set it"),
      field("poison", &TestHooks::poison,
            "fill the buffer of a tensor with NaN before it is written and when it is no longer "
            "needed, so that a wrong order of ops shows"));
}

struct RunOptions {
  int64_t steps = 1;
  int64_t first_step = 0;
  Precision precision = Precision::kF32;
  bool emulate_link = false;  // transfers take the times of the plan's cluster's links
  double timeout_s = kWatchdogSeconds;
  /// 0: off. Otherwise every lane is held after each op until `pace` times the CPU time of the op
  /// has passed since the lane was ready, and the emulated link is slower by the same factor, so
  /// that ranks that share cores show the times of ranks with a core each. All times of the result
  /// are divided by `pace`. Only for the executor cpu, with an emulated link, in one process.
  double pace = 0;
  /// For a job, with one rank per process; null: all ranks are in this process. All processes run
  /// plans of the same hash. On ranks other than 0, only `stopped` of the RunResult is valid.
  Processes* processes = nullptr;
  DataSource data;
  /// For the parameters of ParamInfo::Init::kUniform; null: reference_init.
  ParamInit init;
  /// For all parameters and, with the numbers after them, the model's states, in the place of
  /// `init`; null: none.
  ParamInit values;
  /// Stop at the op that produced the first NaN or infinity. Every result is read once more, which
  /// costs 2 to 3% of a step of the reference model on one core.
  bool check_finite = true;
  /// A trace, empty at first, into which the routing of the steps is recorded, but not that of
  /// eval_batches. It is complete when the run is over, and has no steps when no step or no MoE
  /// layer ran. Null: nothing is recorded.
  std::shared_ptr<Trace> record;
  /// The step, counted from the run's first as 0, for whose simulated timeline the traffic of each
  /// link is recorded; -1: none. When all steps are the same and only one is simulated, that step
  /// is used. Executed timelines with an emulated link always have the traffic of its links.
  int64_t links_of_step = -1;
  /// Called after every step on rank 0's thread; returning false stops the run on all ranks. The
  /// loss of a simulated step is 0.
  std::function<bool(int64_t step, double loss)> on_step;

  TrainOptions train;
  InferOptions infer;
  Policies policies;
  DeviceSettings device;  // for the executor cuda
  TestHooks test;

  /// How much longer the run takes than the times of its result: `pace`, or 1 if that is off.
  double dilation() const { return pace > 0 ? pace : 1; }
};

constexpr auto fields_of(const RunOptions*) {
  constexpr const char* kFunction = "a function or an object; set by the caller";
  return field_table<RunOptions>(
      field("steps", &RunOptions::steps,
            "number of training steps; with resume_from, counted from the checkpoint's step")
          .from(1, 1e9),
      field("first_step", &RunOptions::first_step),
      field("precision", &RunOptions::precision,
            "f64 needs the executor cpu; bf16 needs the executor cuda: activations in bfloat16, "
            "parameters and sums in f32"),
      field("emulate_link", &RunOptions::emulate_link),
      field("timeout_s", &RunOptions::timeout_s,
            "how long a collective waits for another rank, in seconds")
          .from(0.01, 1e6),
      field("pace", &RunOptions::pace,
            "cpu with a link: every op holds its lane for this many times its CPU time, the link "
            "is slower by the same factor, and all times of results are divided by it, so that "
            "more ranks than cores show the times of ranks with a core each; at least 1.1 * ranks "
            "/ cores; default: off")
          .from(1, 1000),
      field("check_finite", &RunOptions::check_finite,
            "stop at the op that produced the first NaN or infinity; for this, every result is "
            "read once more"),
      field("links_of_step", &RunOptions::links_of_step), inlined("", &RunOptions::train),
      inlined("", &RunOptions::device), internal(&RunOptions::processes, kFunction),
      internal(&RunOptions::data, kFunction), internal(&RunOptions::init, kFunction),
      internal(&RunOptions::values, kFunction), internal(&RunOptions::record, kFunction),
      internal(&RunOptions::on_step, kFunction), internal(&RunOptions::infer, kFunction),
      internal(&RunOptions::policies, kFunction), inlined("", &RunOptions::test));
}

}  // namespace moe
