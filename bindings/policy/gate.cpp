#include "bindings/policy/gate.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <set>

#include "bindings/reference.h"

namespace moe::lua {
namespace {

kernels::ScoreRule score_rule(const std::string& name) {
  return name == "sigmoid" ? kernels::ScoreRule::kSigmoid : kernels::ScoreRule::kSoftmax;
}

kernels::WeightRule weight_rule(const std::string& name) {
  if (name == "renorm") return kernels::WeightRule::kRenorm;
  return name == "one" ? kernels::WeightRule::kOne : kernels::WeightRule::kProb;
}

/// The gate of one rank: its Lua state, its function, and the deadline of its calls.
class RankGate {
 public:
  RankGate(const HostOptions& options, std::shared_ptr<Watchdog> watchdog,
           std::shared_ptr<const GatePolicy> policy, int64_t rank)
      : host_(options, std::move(watchdog)),
        policy_(std::move(policy)),
        rank_(rank),
        deadline_(
            host_.watchdog(), [] {}, [this] { too_late(); }) {
    try {
      host_.evaluate_policies();
      fetch();
    } catch (const UserError& e) {
      throw user_error("gate '{}', rank {}: {}", policy_->name, rank_, e.what());
    }
  }

  /// Checks, on a gate's first tokens in each layer, that a gate with scope "token" routes each
  /// token independently of later ones: these tokens are routed again in two parts.
  void hold_to_scope(const GateInput& in, int64_t columns) {
    if (policy_->spec.batch_scope || !scope_shown_.insert(in.layer).second) return;
    try {
      check_token_scope([this](const GateInput& part, RoutingBuilder& out) { route(part, out); },
                        in, columns);
    } catch (const UserError& e) {
      if (std::string_view(e.what()).find("gate '") == 0) throw;
      throw user_error("{}: {}", who(), e.what());
    }
  }

  void route(const GateInput& in, RoutingBuilder& out) {
    lua_State* L = host_.state();
    step_ = in.step;
    layer_ = in.layer;
    route_->push(L);
    const GateViews views(L, in, out, *policy_);
    options_->push(L);
    Failure failure;
    deadline_.arm(host_.options().policy_deadline_s);
    const bool good = try_call(L, 3, 1, failure);
    deadline_.disarm();
    if (good) {
      // What take() returns may be handed on.
      const bool nothing = lua_isnil(L, -1) || lua_isboolean(L, -1);
      const std::string type = luaL_typename(L, -1);
      lua_pop(L, 1);
      if (nothing) return;
      throw user_error(
          "{}: {}route() returned a {}, which has no effect; it returns nothing and chooses "
          "experts by ctx:take or ctx:fill",
          who(), line_, type);
    }
    if (failure.kind == "run") throw run_error("{}: {}", who(), failure.message);
    // An error of the recipe's function is the recipe's mistake.
    throw user_error("{}: {}", who(), failure.message);
  }

 private:
  // Gets the gate's functions and options from the definition that the recipe made in this state.
  void fetch() {
    lua_State* L = host_.state();
    host_.push_policy("gate", policy_->name);
    lua_getfield(L, -1, "route");
    line_ = function_position(L);
    route_ = std::make_unique<Reference>(L);
    push_json(L, policy_->options);
    options_ = std::make_unique<Reference>(L);
    lua_settop(L, 0);
  }

  /// Returns the gate and layer for messages; the executor that calls the gate adds rank and step.
  std::string who() const {
    return fmt::format("gate '{}', layer {}", policy_->name, layer_.load() + 1);
  }

  // Called on the watchdog's thread.
  void too_late() const {
    exit_now(
        fmt::format(
            "gate '{}', rank {}, step {}, layer {}: a call of route() passed the deadline of {} s",
            policy_->name, rank_, step_.load(), layer_.load() + 1,
            host_.options().policy_deadline_s),
        3);
  }

  Host host_;
  std::shared_ptr<const GatePolicy> policy_;
  int64_t rank_;
  std::unique_ptr<Reference> route_, options_;
  std::string line_;  // of the function route: "recipe.lua:3: "
  std::atomic<int64_t> step_{0}, layer_{0};
  std::set<int64_t> scope_shown_;  // layers in which the scope was checked
  Deadline deadline_;
};

int64_t bounded_capacity(lua_State* L, int index, const std::string& name, int64_t capacity,
                         int64_t experts) {
  lua_getfield(L, index, "bound");
  if (!lua_isfunction(L, -1)) {
    lua_pop(L, 1);
    return capacity;
  }
  lua_pushnumber(L, static_cast<double>(capacity));
  lua_getfield(L, index, "options");
  call(L, 2, 1);
  const bool number = lua_type(L, -1) == LUA_TNUMBER;
  const double bound = number ? lua_tonumber(L, -1) : 0;
  if (!(bound >= 1) || bound != std::floor(bound)) {
    throw user_error("gate '{}': bound() returned {}; return a whole number of at least 1", name,
                     number ? fmt::format("{}", bound) : luaL_typename(L, -1));
  }
  lua_pop(L, 1);
  constexpr int32_t kMostSlots = std::numeric_limits<int32_t>::max();
  if (bound * static_cast<double>(experts) > kMostSlots) {
    throw user_error(
        "gate '{}': bound() returned {} slots for each of {} experts; at most {} slots in all are "
        "allowed",
        name, bound, experts, kMostSlots);
  }
  return static_cast<int64_t>(bound);
}

}  // namespace

std::shared_ptr<const GatePolicy> gate_policy_of(lua_State* L, int index, const Fields& gate,
                                                 const ModelSpec& model, const PlanSpec& plan) {
  auto policy = std::make_shared<GatePolicy>();
  policy->name = gate.text("name");
  policy->options = gate.has("options") ? gate.at("options").value() : nlohmann::json::object();
  policy->devices = model.ep > 0 ? model.ep : plan.num_ranks;
  policy->devices_per_node = std::min(policy->devices, plan.cluster.devices_per_node);
  GateSpec& spec = policy->spec;
  // The hash of the code keeps measured times of two gates with the same name apart.
  spec.name = fmt::format("{}@{:08x}", policy->name, Host::of(L).code_hash() >> 32);
  spec.k = gate.integer("k", model.k);
  spec.columns = gate.integer("columns", spec.k);
  spec.batch_scope = gate.text("scope") == "batch";
  spec.scores = gate.text("scores", "softmax");
  spec.weight = gate.text("weight", "prob");
  set_router(spec, model);
  set_slots(spec, model, spec.batch_scope, [&](int64_t tokens) {
    const int64_t capacity =
        builtin_gate("random").capacity(tokens, model.experts, spec.k, model.capacity_factor);
    return bounded_capacity(L, index, policy->name, capacity, model.experts);
  });
  return policy;
}

RankGates rank_gates(const Host& host, std::shared_ptr<const GatePolicy> policy) {
  return [options = host.rank_options(), watchdog = host.watchdog(), policy](int64_t rank) {
    const auto state = std::make_shared<RankGate>(options, watchdog, policy, rank);
    const GateSpec& spec = policy->spec;
    Gate gate;
    gate.name = policy->name;
    gate.scope = spec.batch_scope ? GateScope::kBatch : GateScope::kToken;
    gate.scores = score_rule(spec.scores);
    gate.weight = weight_rule(spec.weight);
    gate.fixed_k = spec.k;
    gate.columns = [n = spec.columns](int64_t, int64_t) { return n; };
    gate.capacity = [c = spec.capacity](int64_t, int64_t, int64_t, double) { return c; };
    gate.route = [state](const GateInput& in, RoutingBuilder& out) {
      state->hold_to_scope(in, out.maps().columns);
      state->route(in, out);
    };
    return gate;
  };
}

}  // namespace moe::lua
