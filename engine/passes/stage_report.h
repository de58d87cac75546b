// What a stage changed, and what it was told and did not do: the pipeline compares what a stage was
// given with what it returned, and takes the reasons from what the stage logged.
#pragma once

#include <span>

#include "engine/passes/pass.h"

namespace moe {

/// Of a stage that edits a graph.
StageChanges changes_of(const Graph& before, const Graph& after);
/// Of a scheduler; `after.settings` gets what it set, with the stage's name.
StageChanges changes_of(const Schedule& before, Schedule& after, const std::string& stage);

/// said: what the stage logged. graph: as the stage left it. took_ns is the caller's.
StageReport report_of(const Stage& stage, const StageChanges& changes,
                      std::span<const Decision> said, const Graph& graph);

}  // namespace moe
