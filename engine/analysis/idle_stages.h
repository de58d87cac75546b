// Idle stages: stages of a plan whose options had no effect, or less effect than requested, and the
// reasons. For reports; a pass itself does not use them.
#pragma once

#include <vector>

#include "engine/analysis/findings.h"
#include "engine/passes/pass.h"
#include "engine/plan.h"

namespace moe {

/// Returns idle stages in the order of `reports` (Pipeline::reports):
/// - one entry for each thing that a stage was requested to do and did not do;
/// - stages that changed nothing because of an option;
/// - schedule passes without which the simulated step is the same, to the nanosecond. This is
///   checked only if `cost` is not null and has times, no policy picks the ops of a lane
///   (Pick::kPolicy) and no op places experts; otherwise steps differ from the simulated one.
std::vector<IdleStage> idle_stages(const Graph& graph, const Schedule& schedule,
                                   const CostModel* cost, const std::vector<StageReport>& reports);

/// The same of a plan. Without the last kind of entry where its steps have a routing, and on
/// several pipeline ranks, whose programs have the order that the passes gave them.
std::vector<IdleStage> idle_stages(const Plan& plan);

}  // namespace moe
