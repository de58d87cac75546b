// Ops that call what a recipe defines, timed with it: profile_op times them with something built in
// in its place, and the calls' own time comes on top.
#pragma once

#include <string>

#include "engine/cost/cost_model.h"
#include "engine/exec/run_options.h"
#include "engine/profile/profiler.h"

namespace moe {

/// `measure`, but a gate op that names `name` takes the time of rank 0's gate's calls on top.
ProfileCost::Measure with_gate(ProfileCost::Measure measure, RankGates gates, std::string name,
                               const ProfileOptions& options);

/// `measure`, but a place op whose policy is one of rank 0's takes the time of that policy's calls,
/// a call in `every` steps, on top of what the op does beside.
ProfileCost::Measure with_policies(ProfileCost::Measure measure, RankPlacements policies,
                                   const ProfileOptions& options);

}  // namespace moe
