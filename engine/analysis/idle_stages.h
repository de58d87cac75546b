// Stages of a plan without effect: what they were told and did not do, and why.
#pragma once

#include <vector>

#include "engine/analysis/findings.h"
#include "engine/passes/pass.h"

namespace moe {

/// Of the stages that ran (`reports`, Pipeline::reports), in their order: what each was told and
/// did not do; those that changed nothing; and schedulers whose order, lanes, priorities, chunks
/// and disciplines leave the simulated step as it would be without them, to the nanosecond, which
/// is asked only where no lane picks by a function and all steps are alike, and how long
/// ops take is known: cost is null, or the graph places experts, where steps are not alike.
std::vector<IdleStage> idle_stages(const Graph& graph, const Schedule& schedule,
                                   const CostModel* cost, const std::vector<StageReport>& reports);

}  // namespace moe
