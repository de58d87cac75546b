// Picks written in Lua, the functions by which a comm lane chooses its next op: s:discipline(lane,
// { pick = f }). In a simulation f is called in the recipe's state. An executor calls it in another
// state, one per lane, in which the recipe was evaluated and its schedule applied again. Built-in
// picks are in engine/schedule.
#pragma once

#include <functional>

#include "bindings/policy/graph_session.h"

namespace moe::lua {

/// Pops a function f(ready) from the stack and returns it as the lane's choice of the next op. A
/// call has the deadline of a policy's call. It throws RunError with the recipe's line, lane and
/// schedule if f does not return one of the ready ops.
Choose lua_choose(lua_State* L, GraphSession& session, LaneId lane);

/// Returns the function Policies::choose of a run. Calling it throws UserError if the recipe does
/// not define the schedule before the first call that would run something. Requires: `picks` are
/// those of the plan; plan and picks exist longer than the returned function.
std::function<Choose(LaneId)> executor_choose(const Host& host, const Plan& plan,
                                              const PickPolicies& picks);

}  // namespace moe::lua
