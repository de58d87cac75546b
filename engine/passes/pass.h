// Passes and schedulers. A pass is a documented function that takes a graph or a schedule as a
// value and returns the changed value; it neither verifies nor times, which is done in pipeline.h.
// Stages run in the order of their kinds; within a kind as in_order() says (stage_order.h).
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/names.h"
#include "engine/base/option.h"
#include "engine/cluster/cluster.h"
#include "engine/cost/cost_model.h"
#include "engine/graph/graph.h"
#include "engine/model/model.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// kPlacement: lets a policy place the experts; at most one per system. kForward: edits the forward
/// graph. kBackward: completes the step. kStep: edits the graph of the whole step. kDevice: edits
/// it for a device, so that schedule passes use the costs of the ops that will run. kSchedule:
/// edits the schedule of one micro-batch. kPipeline: edits the schedule of the whole step of a
/// pipeline rank, in which its turns follow each other.
enum class StageKind : uint8_t {
  kPlacement,
  kForward,
  kBackward,
  kStep,
  kDevice,
  kSchedule,
  kPipeline,
  kUnset
};
/// As recipes and results write the kind.
constexpr std::array<const char*, 7> names_of(StageKind) {
  return {"placement", "forward", "backward", "step", "device", "schedule", "pipeline"};
}
/// Whether stages of the kind edit a schedule, and not the graph.
constexpr bool schedules(StageKind kind) {
  return kind == StageKind::kSchedule || kind == StageKind::kPipeline;
}

struct StepTurns;  // schedule/unroll.h

/// What a stage makes of the MoE layers that other stages must find or must not find yet.
enum class Fact : uint8_t {
  kCounts,  // rows in use are counted: all-to-alls carry them, or experts compute only them
  kRounds,  // all-to-alls are cut into rounds between groups of ranks
  kParts,   // all-to-alls and experts are cut into parts along the capacity
  kSteps,   // all-to-alls are two steps, inside nodes and between them
  kSlots,   // the slots of packed rows have their numbers
};
constexpr std::array<const char*, 5> names_of(Fact) {
  return {"counts", "rounds", "parts", "steps", "slots"};
}
using Facts = std::vector<Fact>;

/// Changes of a plan's graph for a device.
struct DeviceLowering {
  bool fuse_gelu = false;      // passes/device/fuse_gelu.h
  bool round_once = false;     // passes/device/round_once.cpp
  bool pad_logits = false;     // passes/device/pad_logits.cpp
  bool own_attention = false;  // passes/device/own_attention.cpp
};

/// What completes the forward graph to what a device runs.
struct StepSpec {
  /// Whether the graph stays a forward pass: no backward, no update, no optimizer state.
  bool inference = false;
  OptimizerSpec optimizer;
  GradientSync sync;
  DeviceLowering lowering;
  /// Whether a micro-batch may begin before the one before it has ended.
  bool in_flight = false;
};

struct PassContext {
  const Model& model;
  const Cluster& cluster;
  const CostModel& cost;
  const StepSpec& step;
  Options options;
  std::string stage;                 // name of the stage, for order edges and for the log
  std::vector<Decision>* log;        // what the stage did, and why
  const StepTurns* turns = nullptr;  // for kPipeline

  /// Logs what the options of the stage requested but the stage did not do, and why. `op` names the
  /// op concerned; empty means the stage as a whole.
  void skip(std::string why, std::string op = "") const {
    log->push_back({op.empty() ? stage : std::move(op), stage, std::move(why), true});
  }
};

struct PassDef {
  const char* name = nullptr;
  StageKind kind = StageKind::kUnset;
  const char* doc = nullptr;
  std::vector<OptionSpec> options;
  /// Set for the kinds that edit the graph.
  Graph (*transform)(Graph, const PassContext&) = nullptr;
  /// Set for the others.
  Schedule (*schedule)(const Graph&, Schedule, const PassContext&) = nullptr;
  /// What the pass reads of the cost model whatever its options are. If it reads more with some
  /// option, that option has its own OptionSpec::reads.
  Reads reads = Reads::kNothing;
  /// The pass runs after all passes that give what it needs.
  Facts needs = {}, gives = {};
  /// Whether the pass makes ops that have no gradient, so that it is for inference only.
  bool inference_only = false;
  /// Whether it knows one exchange to the experts of a layer and one back, so that it is refused
  /// where etp splits their products, with two of each.
  bool one_exchange = false;
  /// Whether the pass only forbids overlap; it then counts as applied even with nothing to forbid.
  bool forbids = false;
  /// Names of passes that a system cannot have beside this one, since they forbid what it does.
  std::vector<std::string> against = {};
  /// Whether a rehearsal (profile/rehearsal.h) has the pass too, since ops have other sizes by it.
  bool rehearsed = false;
  /// What the heads of tables say of the bytes of states under the pass; empty: nothing.
  const char* states_note = "";
  /// Set for a pass that no system lists: whether a plan has it.
  bool (*runs)(const StepSpec&) = nullptr;
};

/// One stage of a system: a built-in pass by name, or a function (a Lua policy).
struct Stage {
  std::string name;
  StageKind kind = StageKind::kSchedule;
  Options options;
  std::function<Graph(Graph, const PassContext&)> transform;
  std::function<Schedule(const Graph&, Schedule, const PassContext&)> schedule;
  Facts needs = {}, gives = {};  // of a function; those of a built-in pass are in its PassDef

  bool is_built_in() const { return !transform && !schedule; }
};

/// The table of all built-in passes, in order; table.cpp explains the position of each.
const std::vector<PassDef>& builtin_passes();
/// Returns the pass with this name. Throws UserError with the nearest name when there is none.
const PassDef& builtin_pass(std::string_view name);

/// Counts of what a stage changed.
struct StageChanges {
  int64_t ops = 0;  // added, removed or moved ops, and ops with other inputs or attributes
  int64_t order_edges = 0, lanes = 0, priorities = 0, chunks = 0;
  int64_t disciplines = 0;  // lanes with a new discipline, and groups of exclusive lanes
  int64_t holds = 0;

  bool operator==(const StageChanges&) const = default;
};

struct StageReport {
  std::string name;
  bool changed = false;
  Nanoseconds took_ns = 0;
  StageChanges changes = {};
  /// What the options of the stage requested but the stage did not do, each with the reason. Has at
  /// least one entry when the stage changed nothing, unless no_op_option is set.
  std::vector<std::string> without_effect = {};
  std::string no_op_option = {};  // the option with which a stage changes nothing: "degree = 1"
};

}  // namespace moe
