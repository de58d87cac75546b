#include "bindings/policy/pick.h"

#include <algorithm>

#include "bindings/host/convert.h"
#include "bindings/host/userdata.h"

namespace moe::lua {
namespace {

class LuaPick {
 public:
  LuaPick(lua_State* L, GraphSession& session, LaneId lane)
      : session_(session.shared_from_this()),
        what_(fmt::format("pick of lane '{}', {}", session.schedule().lanes[lane.index()].name,
                          session.what())),
        where_(recipe_position(L)),
        f_(L) {
    stack_ = lua_newthread(L);  // for calls of f_: L may be a coroutine that no longer exists then
    anchor_ = std::make_unique<Reference>(L);
  }

  OpId choose(std::span<const OpId> ready) {
    const GraphSession::Visit visit(*session_);
    lua_settop(stack_, 0);
    f_.push(stack_);
    session_->push_ops(stack_, {ready.begin(), ready.end()});
    session_->call(stack_, 1, 1, what_);
    if (lua_isnil(stack_, -1)) {
      throw run_error("{}{}: returned nil, although op '{}' is ready; return one of the ready ops",
                      where_, what_, name(ready[0]));
    }
    const OpId op = named();
    if (std::find(ready.begin(), ready.end(), op) != ready.end()) return op;
    throw run_error("{}{}: returned op '{}', which is not ready; return one of the ready ops",
                    where_, what_, name(op));
  }

 private:
  const std::string& name(OpId op) const { return session_->graph().op(op).name; }

  OpId named() const {
    try {
      return check_own_op(stack_, -1, *session_);
    } catch (const UserError&) {
      // A value that is no op is refused with the same message as an op of another graph.
    }
    throw run_error("{}{}: returned a {}; return one of the ready ops", where_, what_,
                    luaL_typename(stack_, -1));
  }

  std::shared_ptr<GraphSession> session_;
  std::string what_, where_;
  Reference f_;
  lua_State* stack_ = nullptr;
  std::unique_ptr<Reference> anchor_;
};

/// The pick of one lane with the Lua state in which it is called.
class LaneState {
 public:
  LaneState(const HostOptions& options, std::shared_ptr<Watchdog> watchdog, const Plan& plan,
            const PickPolicy& policy, std::shared_ptr<const PolicyView> view, LaneId lane)
      : host_(options, std::move(watchdog)) {
    try {
      host_.evaluate_policies();
      choose_ = chosen(plan, policy, std::move(view), lane);
    } catch (const UserError& e) {
      throw user_error("schedule '{}', evaluated again for its picks in a run: {}", policy.name,
                       e.what());
    }
  }
  OpId choose(std::span<const OpId> ready) const { return choose_(ready); }

 private:
  Choose chosen(const Plan& plan, const PickPolicy& policy, std::shared_ptr<const PolicyView> view,
                LaneId lane) {
    lua_State* L = host_.state();
    host_.push_policy("schedule", policy.name);
    lua_getfield(L, -1, "apply");
    const auto apply = std::make_shared<const Reference>(L);
    push_json(L, policy.options);
    const auto options = std::make_shared<const Reference>(L);
    lua_settop(L, 0);
    std::vector<Decision> log;
    const StepSpec step;
    const PassContext context{
        *plan.spec.model, plan.spec.cluster, *plan.spec.cost, step, {}, policy.name, &log};
    const Schedule again = schedule_policy(L, apply, options, std::move(view), nullptr)(
        plan.graph, policy.before, context);
    const Lane& own = again.lanes[lane.index()];
    if (own.choose == nullptr)
      throw user_error(
          "gave lane '{}' a pick when the plan was made, but none when the recipe was evaluated "
          "again; it must give the same picks each time",
          own.name);
    return own.choose;
  }

  Host host_;
  Choose choose_;  // destroyed before its state
};

}  // namespace

Choose lua_choose(lua_State* L, GraphSession& session, LaneId lane) {
  return [pick = std::make_shared<LuaPick>(L, session, lane)](std::span<const OpId> ready) {
    return pick->choose(ready);
  };
}

std::function<Choose(LaneId)> executor_choose(const Host& host, const Plan& plan,
                                              const PickPolicies& picks) {
  return [options = host.rank_options(), watchdog = host.watchdog(), &plan,
          &picks](LaneId lane) -> Choose {
    const std::string& stage = plan.schedule.lanes[lane.index()].stage;
    const auto policy = std::find_if(picks.list.begin(), picks.list.end(),
                                     [&](const PickPolicy& p) { return p.name == stage; });
    MOE_CHECK(policy != picks.list.end(),
              "lane {}: the policy that installed its pick must be in the plan's list of picks",
              lane.value);
    const auto state =
        std::make_shared<LaneState>(options, watchdog, plan, *policy, picks.view, lane);
    return [state](std::span<const OpId> ready) { return state->choose(ready); };
  };
}

}  // namespace moe::lua
