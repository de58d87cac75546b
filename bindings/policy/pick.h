// Picks written in Lua: s:discipline(lane, { pick = f }). Where a plan is simulated f is called in
// the recipe's state; an executor calls it in a state of its own, one per lane, in which the recipe
// was evaluated and its schedule applied again.
#pragma once

#include <functional>

#include "bindings/policy/graph_session.h"

namespace moe::lua {

/// The function on top of the stack, taken, as the lane's choice: f(ready) -> op under the deadline
/// of a policy's call. RunError with the recipe's line, lane and schedule when f names an op that
/// is not ready, something else, or nothing.
Choose lua_choose(lua_State* L, GraphSession& session, LaneId lane);

/// For Policies::choose. Throws UserError when the recipe defines no such schedule by the time
/// that something would run. Requires: the plan's picks; both outlive what it returns.
std::function<Choose(LaneId)> executor_choose(const Host& host, const Plan& plan,
                                              const PickPolicies& picks);

}  // namespace moe::lua
