// Reports what a stage changed, and what its options requested but it did not do: compares the
// stage's input with its output, and takes the reasons from what the stage logged. The times of
// stages are measured in pipeline.h, not here.
#pragma once

#include <span>

#include "engine/passes/pass.h"

namespace moe {

/// Counts the changes of a stage that edits a graph.
StageChanges changes_of(const Graph& before, const Graph& after);
/// Counts the changes of a scheduler, and adds to `after.settings` what the stage set, with the
/// name of the stage.
StageChanges changes_of(const Schedule& before, Schedule& after, const std::string& stage);

/// Makes the report of a stage. said: the entries of the log that the stage wrote. graph: the graph
/// as the stage left it. The caller sets took_ns.
StageReport report_of(const Stage& stage, const StageChanges& changes,
                      std::span<const Decision> said, const Graph& graph);

}  // namespace moe
