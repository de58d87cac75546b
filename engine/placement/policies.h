// The list of placement policies. Each has a file of its own, which names its paper and includes
// this one: a policy that is missing here does not compile (-Werror=missing-declarations).
#pragma once

#include "engine/placement/policy.h"

namespace moe {

/// The functions that make the policies, in the order of the policies' passes.
#define MOE_POLICIES(X) \
  X(prophet_policy)     \
  X(fastermoe_shadowing_policy) X(top_k_policy) X(eplb_policy) X(swap_policy) X(ultraep_policy)
#define MOE_DECLARE_POLICY(policy) PlacementPolicy policy();
MOE_POLICIES(MOE_DECLARE_POLICY)
#undef MOE_DECLARE_POLICY

}  // namespace moe
