// Runs a system's stages: verifies after each, times it, and says whether it changed anything.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/passes/pass.h"

namespace moe {

/// When a stage runs: a built-in pass knows, a function says so itself.
StageKind kind_of(const Stage& stage);

class Pipeline {
 public:
  /// Keeps references to all four.
  Pipeline(const ModelSpec& model, const Cluster& cluster, const CostModel& cost,
           const std::vector<Stage>& stages)
      : model_(model), cluster_(cluster), cost_(cost), stages_(stages) {}

  /// The stages of this kind in the order listed, each followed by compact and verify. Errors of a
  /// stage name it.
  Graph transform(Graph graph, StageKind kind);
  /// The schedulers; every op must be left on a lane that exists.
  Schedule schedule(const Graph& graph, Schedule schedule);

  /// One entry a stage that has run.
  const std::vector<StageReport>& reports() const { return reports_; }
  /// What the transforms decided; a scheduler's decisions stand in its schedule.
  const std::vector<Decision>& log() const { return log_; }

 private:
  Graph apply(const Stage& stage, Graph graph);
  Schedule apply(const Stage& stage, const Graph& graph, Schedule schedule);
  PassContext context(const Stage& stage, const PassDef* pass, std::vector<Decision>& log) const;

  const ModelSpec& model_;
  const Cluster& cluster_;
  const CostModel& cost_;
  const std::vector<Stage>& stages_;
  std::map<std::string, std::string> cut_by_;  // stages, by the name of the part
  std::vector<StageReport> reports_;
  std::vector<Decision> log_;
};

}  // namespace moe
