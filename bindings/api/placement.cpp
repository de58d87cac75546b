// The arguments ctx and load of a Lua placement policy, and the check of its result. Indices are
// checked, and any use after the call has returned is an error. All numbers count from 1.
#include <algorithm>

#include "bindings/host/core.h"
#include "bindings/host/field_json.h"
#include "bindings/policy/graph_session.h"
#include "bindings/policy/placement_views.h"
#include "engine/base/rng.h"
#include "engine/placement/performance_model.h"

namespace moe::lua {
namespace {

int64_t of_source(const ExpertCounts& loads, int64_t source) {
  int64_t sum = 0;
  for (int64_t e = 0; e < loads.experts; ++e) sum += loads.at(source, e);
  return sum;
}

// load(e, src) -> rows of device src for expert e; load(e) -> rows of all devices for expert e
int load_value(lua_State* L) {
  const PlaceCall& call = check_call(L, kLoadsType);
  const int64_t e = check_expert(L, 2, call);
  if (lua_isnoneornil(L, 3)) return push_number(L, call.in->loads.of_expert(e));
  return push_number(L, call.in->loads.at(check_device(L, 3, call), e));
}

int load_of_expert(lua_State* L) {
  const PlaceCall& call = check_call(L, kLoadsType);
  return push_number(L, call.in->loads.of_expert(check_expert(L, 2, call)));
}

int load_of_device(lua_State* L) {
  const PlaceCall& call = check_call(L, kLoadsType);
  return push_number(L, of_source(call.in->loads, check_device(L, 2, call)));
}

int load_by_expert(lua_State* L) {
  const ExpertCounts& loads = check_call(L, kLoadsType).in->loads;
  return push_list(L, loads.experts, [&](int64_t e) { return loads.of_expert(e); });
}

int load_by_device(lua_State* L) {
  const ExpertCounts& loads = check_call(L, kLoadsType).in->loads;
  return push_list(L, loads.sources, [&](int64_t d) { return of_source(loads, d); });
}

// load:heaviest() -> the experts, those with most tokens first; of two experts with equally many
// tokens, that with the lower number first
int load_heaviest(lua_State* L) {
  const ExpertCounts& loads = check_call(L, kLoadsType).in->loads;
  std::vector<int64_t> inputs, experts;
  for (int64_t e = 0; e < loads.experts; ++e) {
    inputs.push_back(loads.of_expert(e));
    experts.push_back(e);
  }
  std::stable_sort(experts.begin(), experts.end(), [&](int64_t a, int64_t b) {
    return inputs[static_cast<size_t>(a)] > inputs[static_cast<size_t>(b)];
  });
  return push_list(L, loads.experts,
                   [&](int64_t i) { return experts[static_cast<size_t>(i)] + 1; });
}

int load_total(lua_State* L) {
  return push_number(L, check_call(L, kLoadsType).in->loads.total());
}

int context_log(lua_State* L) {
  const PlaceCall& call = check_call(L, kContextType);
  const std::string why = utf8_argument(L, 2);
  if (call.log) call.log(why);
  return 0;
}

/// Throws UserError, beginning with `who`, where weights leave tokens without a holder.
void check_taken(const Placement& p, const char* who) {
  for (int64_t e = 0; e < p.bounds().experts; ++e) {
    const int64_t source = p.not_taken(e);
    if (source < 0) continue;
    throw user_error(
        "{} a placement in which no holder of expert {} takes the tokens of device {}; call "
        "p:share with a function after all holders of the expert are set",
        who, e + 1, source + 1);
  }
}

// ctx:simulate(p) -> ms of a step with p in this layer, see StepTrial
int context_simulate(lua_State* L) {
  const PlaceCall& call = check_call(L, kContextType);
  const Placement& p = check_handle<PlacementHandle>(L, 2, kPlacementType).placement;
  if (!call.simulate_ms) {
    throw UserError(
        "ctx:simulate is possible only while the plan is simulated: for an executed run the policy "
        "is timed before there is a plan to simulate, and in the run its simulations would take "
        "time of the step; use p:time_ms() there");
  }
  check_taken(p, "ctx:simulate was given");
  return push_number(L, call.simulate_ms(p));
}

template <int64_t PlaceInput::*kMember>
int context_number_from_1(lua_State* L) {
  return push_number(L, check_call(L, kContextType).in->*kMember + 1);
}

template <int64_t ExpertCounts::*kMember>
int context_size(lua_State* L) {
  return push_number(L, check_call(L, kContextType).in->loads.*kMember);
}

// Pushes a field of ctx that PlacementTables keeps; argument 2 is the name of the field.
int context_table(lua_State* L) {
  check_call(L, kContextType);
  lua_getfenv(L, 1);
  lua_pushvalue(L, 2);
  lua_rawget(L, -2);
  return 1;
}

// cluster:node_of(d) -> the node of device d. Upvalues: devices, devices per node.
int node_of(lua_State* L) {
  const auto devices = static_cast<int64_t>(lua_tonumber(L, lua_upvalueindex(1)));
  const auto a_node = static_cast<int64_t>(lua_tonumber(L, lua_upvalueindex(2)));
  return push_number(L, check_index(L, 2, devices, "device") / a_node + 1);
}

// cluster:devices_of(n) -> the devices of node n
int devices_of(lua_State* L) {
  const auto devices = static_cast<int64_t>(lua_tonumber(L, lua_upvalueindex(1)));
  const auto a_node = static_cast<int64_t>(lua_tonumber(L, lua_upvalueindex(2)));
  const int64_t node = check_index(L, 2, devices / a_node, "node");
  return push_list(L, a_node, [&](int64_t i) { return node * a_node + i + 1; });
}

void add_cluster_function(lua_State* L, const nlohmann::json& cluster, const char* name,
                          lua_CFunction function) {
  lua_pushnumber(L, cluster.at("devices").get<double>());
  lua_pushnumber(L, cluster.at("devices_per_node").get<double>());
  lua_pushcclosure(L, function, 2);
  lua_setfield(L, -2, name);
}

lua_State* pushed_json(lua_State* L, const nlohmann::json& value) {
  push_json(L, value);
  return L;
}

lua_State* pushed_cluster(lua_State* L, const nlohmann::json& cluster) {
  push_json(L, cluster);
  add_cluster_function(L, cluster, "node_of", method<node_of>);
  add_cluster_function(L, cluster, "devices_of", method<devices_of>);
  return L;
}

nlohmann::json rates_table(PlacementRates rates) {
  rates.copy_bytes_per_s = copy_rate(rates);
  return values_json(rates);
}

}  // namespace

PlacementTables::PlacementTables(lua_State* L, const LuaPlacement& policy)
    : model_(pushed_json(L, policy.model)), cluster_(pushed_cluster(L, policy.cluster)) {}

void PlacementTables::push(lua_State* L, const PlaceInput& in) {
  std::unique_ptr<Reference>& state = states_[in.layer];
  if (!state) {
    lua_newtable(L);
    state = std::make_unique<Reference>(L);
  }
  lua_newtable(L);
  const auto set = [L](const char* name) { lua_setfield(L, -2, name); };
  model_.push(L);
  set("model");
  cluster_.push(L);
  set("cluster");
  state->push(L);
  set("state");
  push_json(L, rates_table(in.rates));
  set("rates");
  push_rng(L, 1000253, {in.step, in.layer});  // the same on all ranks
  set("rng");
}

PlacementViews::PlacementViews(lua_State* L, PlaceCall call, PlacementTables& tables)
    : call_(std::make_shared<PlaceCall>(std::move(call))) {
  push_userdata<CallHandle>(L, kContextType, call_);
  tables.push(L, *call_->in);
  push_userdata<PlacementHandle>(L, kPlacementType, call_, call_->in->now, true);
  lua_setfield(L, -2, "placement");
  if (!call_->policy->workload.empty()) {
    lua_pushstring(L, call_->policy->workload.c_str());
    lua_setfield(L, -2, "workload");
  }
  lua_setfenv(L, -2);
  push_userdata<CallHandle>(L, kLoadsType, call_);
  push_userdata<PlacementHandle>(L, kPlacementType, call_, call_->in->now);
}

Placement PlacementViews::result(lua_State* L, int index) const {
  if (lua_isnil(L, index)) throw UserError("place() returned nothing; return p or a copy of it");
  const PlacementHandle* handle = nullptr;
  try {
    handle = &check_userdata<PlacementHandle>(L, index, kPlacementType);
  } catch (const UserError&) {
    throw user_error("place() returned a {}; return p or a copy of it", luaL_typename(L, index));
  }
  if (handle->call != call_) {
    throw UserError("place() returned a placement of an earlier call; return p or a copy of it");
  }
  check_taken(handle->placement, "place() returned");
  return handle->placement;
}

void open_placement(lua_State* L) {
  static constexpr Member kContext[] = {
      {"step", "integer", "step of the run, from 1", context_number_from_1<&PlaceInput::step>},
      {"layer", "integer", "MoE layer, from 1", context_number_from_1<&PlaceInput::layer>},
      {"experts", "integer", "number of experts of the layer",
       context_size<&ExpertCounts::experts>},
      {"devices", "integer", "number of devices that hold the experts",
       context_size<&ExpertCounts::sources>},
      {"model", "moe.ContextModel", "sizes of the model", context_table},
      {"cluster", "moe.ContextCluster", "the devices and links", context_table},
      {"workload", "string?", "name of the workload, in place of a gate; nil with a gate",
       context_table},
      {"placement", "moe.Placement", "the placement in force, read only", context_table},
      {"rates", "moe.PlacementRates",
       "the rates from which p:time_ms() and p:move_ms() are computed", context_table},
      {"rng", "moe.Rng",
       "random numbers that depend only on --seed, step and layer, so not on the rank",
       context_table},
      {"state", "table",
       "a table of the policy that is kept from call to call, one per rank and layer",
       context_table},
      {"log", "(why: string)", "adds a line to the log of the step's placement in results",
       method<context_log>},
      {"simulate", "(p: moe.Placement): number",
       "ms of a simulated step in which this layer has this load and p, and each other layer the "
       "load and the placement of the policy's last call for it; only while the plan is simulated",
       method<context_simulate>}};
  static constexpr Member kLoads[] = {
      {"()", "(expert: integer, device?: integer): integer",
       "tokens for an expert: from this device, or from all devices if none is given",
       method<load_value>},
      {"of_expert", "(expert: integer): integer", "tokens for an expert", method<load_of_expert>},
      {"of_device", "(device: integer): integer", "tokens that a device sends",
       method<load_of_device>},
      {"by_expert", "(): integer[]", "tokens for each expert", method<load_by_expert>},
      {"by_device", "(): integer[]", "tokens that each device sends", method<load_by_device>},
      {"heaviest", "(): integer[]", "experts, those with most tokens first", method<load_heaviest>},
      {"total", "(): integer", "tokens that all devices send", method<load_total>}};
  new_type<CallHandle>(
      L, {kContextType, "ctx", "the call of a placement policy; the same on all ranks", kContext});
  new_type<CallHandle>(
      L, {kLoadsType, "load", "number of tokens for each expert from each device", kLoads});
  open_placed(L);
}

}  // namespace moe::lua
