// Gates written in Lua. A gate's bound() is called once, when the plan is made. Its route() is
// called on rank threads; each has its own Lua state, in which the recipe was evaluated again.
// Built-in gates are in engine/routing; the arguments of route() as recipes see them are in
// api/gate.cpp.
#pragma once

#include <memory>

#include "bindings/host/host.h"
#include "bindings/plan_spec.h"
#include "engine/exec/run_options.h"
#include "engine/routing/gate.h"

namespace moe::lua {

/// Makes a gate policy of the gate instance at `index`, whose values are `gate`, for the ranks and
/// the cluster of `spec`; calls bound() for the capacity. Throws UserError naming the gate unless
/// bound() returns a whole number above 0.
std::shared_ptr<const GatePolicy> gate_policy_of(lua_State* L, int index, const Fields& gate,
                                                 const ModelSpec& model, const PlanSpec& spec);

/// Returns the function Policies::gate of a run. An error in a call is a UserError that names gate,
/// rank, step, layer and the recipe's line; a call that passes its deadline ends the process with
/// status 3.
RankGates rank_gates(const Host& host, std::shared_ptr<const GatePolicy> policy);

/// The input and output of one call of a gate. Shared with the handles in Lua, which may exist
/// longer than the call.
struct GateCall {
  const GateInput* in;  // null after the call has ended
  RoutingBuilder* out;
  const GatePolicy* policy;
};
/// Pushes the arguments ctx and s of a call; their use after the call is an error.
class GateViews {
 public:
  GateViews(lua_State* L, const GateInput& in, RoutingBuilder& out, const GatePolicy& policy);
  ~GateViews() { call_->in = nullptr; }
  GateViews(const GateViews&) = delete;
  GateViews& operator=(const GateViews&) = delete;

 private:
  std::shared_ptr<GateCall> call_;
};

}  // namespace moe::lua
