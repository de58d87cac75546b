// Times of ops that call a function of a recipe (a gate or a placement policy). profile_op() times
// such an op with a built-in function instead; here the time of the recipe's function is added.
#pragma once

#include <string>

#include "engine/cost/cost_model.h"
#include "engine/exec/run_options.h"
#include "engine/profile/profiler.h"

namespace moe {

/// Returns `measure` changed so that the time of calling rank 0's gate is added for gate ops whose
/// gate is `name`.
ProfileCost::Measure with_gate(ProfileCost::Measure measure, RankGates gates, std::string name,
                               const ProfileOptions& options);

/// Returns `measure` changed so that for place ops whose policy is a function of the recipe the
/// time of that function on rank 0 is added, divided by the number of steps between calls
/// (attribute `every`).
ProfileCost::Measure with_policies(ProfileCost::Measure measure, RankPlacements policies,
                                   const ProfileOptions& options);

}  // namespace moe
