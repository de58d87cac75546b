// Gates written in Lua. A gate's bound() is called once, where the plan is made; its route() is
// called on rank threads, each with a state of its own in which the recipe was evaluated again.
#pragma once

#include <functional>
#include <memory>

#include "bindings/host/host.h"
#include "bindings/plan_spec.h"
#include "engine/exec/run_options.h"
#include "engine/routing/gate.h"

namespace moe::lua {

/// From the gate instance at `index` (its values in `gate`): calls bound() for the capacity. Throws
/// UserError naming the gate when bound() gives something else than a whole number of at least 1.
std::shared_ptr<const GatePolicy> gate_policy_of(lua_State* L, int index, const Fields& gate,
                                                 const ModelSpec& model);

/// For Policies::gate. What goes wrong in a call is a UserError that names gate, rank, step,
/// layer and the recipe's line; a call that passes its deadline ends the process with status 3.
RankGates rank_gates(const Host& host, std::shared_ptr<const GatePolicy> policy);

/// One call's view of a gate's input, shared with the handles in Lua: either may be gone first.
struct GateCall {
  const GateInput* in;  // null: the call is over
  RoutingBuilder* out;
};
/// Pushes ctx and s for a call, which see nothing after its end.
class GateViews {
 public:
  GateViews(lua_State* L, const GateInput& in, RoutingBuilder& out);
  ~GateViews() { call_->in = nullptr; }
  GateViews(const GateViews&) = delete;
  GateViews& operator=(const GateViews&) = delete;

 private:
  std::shared_ptr<GateCall> call_;
};

}  // namespace moe::lua
