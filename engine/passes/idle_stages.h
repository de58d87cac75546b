// Stages of a plan that changed nothing, and why.
#pragma once

#include <vector>

#include "engine/passes/pass.h"
#include "engine/replay/findings.h"

namespace moe {

/// Of the stages that ran (`reports`, Pipeline::reports) those that left graph and schedule as they
/// were. The reason is what the stage itself logged last, or else what the plan shows.
std::vector<IdleStage> idle_stages(const Graph& graph, const Schedule& schedule,
                                   const std::vector<Stage>& stages,
                                   const std::vector<StageReport>& reports);

}  // namespace moe
