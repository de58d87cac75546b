// Runs the stages of a system: after each stage it verifies the result, records the time and
// reports whether the stage changed anything. Invariant: a stage whose result is invalid ends the
// planning with an error that names the stage. The passes themselves are in the subfolders; what a
// report contains is computed in pipeline.cpp.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/passes/pass.h"

namespace moe {

/// Returns the kind of a stage, which decides when it runs: for a built-in pass the kind in the
/// table of passes, for a function the field Stage::kind.
StageKind kind_of(const Stage& stage);

class Pipeline {
 public:
  /// Runs these stages and the passes that no system lists (PassDef::runs), in order. Keeps
  /// references to the first four arguments. Throws UserError for a stage that edits a training
  /// step, if the step is for inference, and for one that is for inference only, if it is not.
  Pipeline(const Model& model, const Cluster& cluster, const CostModel& cost, const StepSpec& step,
           std::vector<Stage> stages);

  /// Runs the stages that edit the graph one after the other, with compact() and verify() after
  /// each. Errors of a stage name the stage.
  Graph transform(Graph graph);
  /// Runs the schedulers of a micro-batch. Throws RunError when an op has no lane, or one that does
  /// not exist.
  Schedule schedule(const Graph& graph, Schedule schedule);
  /// Runs those of the whole step (StageKind::kPipeline); throws as schedule().
  Schedule schedule_step(const Graph& graph, Schedule schedule, const StepTurns& turns);

  /// One entry per stage of the system that has run, then one per other pass that has changed
  /// something.
  std::vector<StageReport> reports() const;
  /// What the stages that edit the graph did, and why; for a scheduler this is in its schedule.
  const std::vector<Decision>& log() const { return log_; }

 private:
  Graph apply(const Stage& stage, Graph graph);
  Schedule apply(const Stage& stage, const Graph& graph, Schedule schedule, const StepTurns* turns);
  Schedule run_schedulers(StageKind kind, const Graph& graph, Schedule schedule,
                          const StepTurns* turns);
  PassContext context(const Stage& stage, const PassDef* pass, std::vector<Decision>& log) const;

  const Model& model_;
  const Cluster& cluster_;
  const CostModel& cost_;
  const StepSpec& step_;
  const std::vector<Stage> stages_;
  std::map<std::string, std::string> cut_by_;  // the stage that cut, indexed by name of the part
  std::vector<StageReport> reports_, unlisted_;
  std::vector<Decision> log_;
};

}  // namespace moe
