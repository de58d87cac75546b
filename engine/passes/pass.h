// Passes and schedulers. A pass is one documented function, value in, value out; the pipeline
// verifies, times and logs. Order of stages: placement, passes on the forward graph, autodiff,
// passes on the whole step, schedulers; within a kind as the system lists them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/base/option.h"
#include "engine/cluster/cluster.h"
#include "engine/cost/cost_model.h"
#include "engine/graph/graph.h"
#include "engine/model/model.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// placement: lets a policy place the experts; one per system. forward: edits the forward graph.
/// step: edits the whole step. schedule: makes order.
enum class StageKind : uint8_t { kPlacement, kForward, kStep, kSchedule, kUnset };
/// "placement", "forward", "step", "schedule": as recipes and results write it.
const char* stage_kind_name(StageKind kind);

struct PassContext {
  const ModelSpec& model;
  const Cluster& cluster;
  const CostModel& cost;
  Options options;
  std::string stage;           // name of the stage, for order edges and the log
  std::vector<Decision>* log;  // decisions with their reasons

  /// Writes down what the stage was told to do and did not, and why: about an op, or as a whole.
  void skip(std::string why, std::string op = "") const {
    log->push_back({op.empty() ? stage : std::move(op), stage, std::move(why), true});
  }
};

struct PassDef {
  const char* name = nullptr;
  StageKind kind = StageKind::kUnset;
  const char* doc = nullptr;
  std::vector<OptionSpec> options;
  Graph (*transform)(Graph, const PassContext&) = nullptr;                     // forward, step
  Schedule (*schedule)(const Graph&, Schedule, const PassContext&) = nullptr;  // schedule
  Reads reads = Reads::kNothing;  // whatever its options are; those say what they add
  bool inference_only = false;    // no backward goes through what it makes
  bool forbids = false;           // a rule; where nothing would break it, it is kept all the same
};

/// One stage of a system: a built-in pass by name, or a function (a Lua policy).
struct Stage {
  std::string name;
  StageKind kind = StageKind::kSchedule;
  Options options;
  std::function<Graph(Graph, const PassContext&)> transform;
  std::function<Schedule(const Graph&, Schedule, const PassContext&)> schedule;
};

/// The one ordered table; pipeline.cpp says why each pass stands where it does.
const std::vector<PassDef>& builtin_passes();
/// Throws UserError with the nearest name.
const PassDef& builtin_pass(std::string_view name);

/// What a stage changed, counted.
struct StageChanges {
  int64_t ops = 0;  // made, removed, moved, or with other inputs or attributes
  int64_t order_edges = 0, lanes = 0, priorities = 0, chunks = 0;
  int64_t disciplines = 0;  // lanes that pick, and groups of exclusive ones
  int64_t holds = 0;

  bool operator==(const StageChanges&) const = default;
};

struct StageReport {
  std::string name;
  bool changed = false;
  Nanoseconds took_ns = 0;
  StageChanges changes = {};
  /// What its options ask for and it did not do, with the reason; of a stage that changed nothing
  /// at least one, unless no_op_option.
  std::vector<std::string> without_effect = {};
  std::string no_op_option = {};  // the option by which it changes nothing: "degree = 1"
};

}  // namespace moe
