// Methods of the argument p of a placement policy: a placement that can be read and edited. Before
// an edit changes anything, it is checked against the slots that the plan has. Edits return p.
#include <algorithm>
#include <map>
#include <memory>

#include "bindings/policy/placement_views.h"
#include "engine/placement/performance_model.h"
#include "engine/placement/quota.h"

namespace moe::lua {
namespace {

int owner(lua_State* L) {
  const PlacementHandle& p = check_placement(L);
  return push_number(L, p.placement.owner(check_expert(L, 2, *p.call)) + 1);
}

// p:holders(e) -> the devices that hold expert e, its owner first
int holders(lua_State* L) {
  const PlacementHandle& p = check_placement(L);
  const int64_t e = check_expert(L, 2, *p.call);
  std::vector<int64_t> devices = {p.placement.owner(e)};
  for (const int64_t d : p.placement.holders(e)) {
    if (d != devices[0]) devices.push_back(d);
  }
  return push_list(L, static_cast<int64_t>(devices.size()),
                   [&](int64_t i) { return devices[static_cast<size_t>(i)] + 1; });
}

int holds(lua_State* L) {
  const PlacementHandle& p = check_placement(L);
  const int64_t e = check_expert(L, 2, *p.call);
  lua_pushboolean(L, p.placement.holds(check_device(L, 3, *p.call), e));
  return 1;
}

int copy(lua_State* L) {
  const PlacementHandle& p = check_placement(L);
  push_userdata<PlacementHandle>(L, kPlacementType, p.call, p.placement);
  return 1;
}

/// The arguments of an edit: the placement, an expert and a device.
struct Edit {
  PlacementHandle& p;
  Placement& placement;
  int64_t expert, device;
};

Edit check_edit(lua_State* L) {
  PlacementHandle& p = check_placement(L);
  return {p, p.edit(), check_expert(L, 2, *p.call), check_device(L, 3, *p.call)};
}

void check_moves(const PlacementHandle& p, const char* what) {
  if (p.call->policy->stage.moves_residents) return;
  throw user_error(
      "p:{}: this policy may not move residents; use p:shadow for copies of one step, or give the "
      "policy at = 'step' and moves = true",
      what);
}

void check_absent(const Edit& e) {
  if (!e.placement.holds(e.device, e.expert)) return;
  throw user_error(
      "device {} already holds expert {}; give a device for which p:holds returns false",
      e.device + 1, e.expert + 1);
}

void check_room(const Edit& e) {
  if (e.placement.free_residents(e.device) > 0) return;
  throw user_error(
      "there is no free slot for expert {} on device {}: its {} slots for residents are in use; "
      "use p:swap, or give the policy more slots by extra_residents",
      e.expert + 1, e.device + 1, e.placement.bounds().residents);
}

// Returns p, the result of every edit.
int edited(lua_State* L) {
  lua_settop(L, 1);
  return 1;
}

int shadow(lua_State* L) {
  const Edit e = check_edit(L);
  check_absent(e);
  if (e.placement.free_shadows(e.device) == 0) {
    throw user_error(
        "there is no free slot for a copy of expert {} on device {}: its {} slots for copies are "
        "in use; give the policy more slots by shadows",
        e.expert + 1, e.device + 1, e.placement.bounds().shadows);
  }
  e.placement.add_shadow(e.expert, e.device);
  return edited(L);
}

int replicate(lua_State* L) {
  const Edit e = check_edit(L);
  check_moves(e.p, "replicate");
  check_absent(e);
  check_room(e);
  e.placement.add_resident(e.expert, e.device);
  return edited(L);
}

int migrate(lua_State* L) {
  const Edit e = check_edit(L);
  check_moves(e.p, "migrate");
  if (!e.placement.is_resident(e.expert, e.device)) check_room(e);
  e.placement.move_owner(e.expert, e.device);
  return edited(L);
}

/// The devices in the list at the top of the stack: holders of expert e, the owner first.
std::vector<int64_t> listed_holders(lua_State* L, int64_t e, const PlaceCall& call) {
  if (!lua_istable(L, -1) || lua_objlen(L, -1) == 0) {
    throw user_error("p:layout: expert {} has no list of devices; give its owner and then others",
                     e + 1);
  }
  std::vector<int64_t> devices;
  for (size_t i = 1; i <= lua_objlen(L, -1); ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i));
    devices.push_back(check_device(L, lua_gettop(L), call));
    lua_pop(L, 1);
    if (std::count(devices.begin(), devices.end(), devices.back()) == 1) continue;
    throw user_error("p:layout: expert {} is on device {} twice", e + 1, devices.back() + 1);
  }
  return devices;
}

// p:layout(holders) -> p; holders[expert] = its devices, the owner first
int layout(lua_State* L) {
  PlacementHandle& p = check_placement(L);
  Placement& placement = p.edit();
  const PlacementBounds& bounds = placement.bounds();
  check_moves(p, "layout");
  luaL_checktype(L, 2, LUA_TTABLE);
  std::vector<int64_t> owners;
  std::vector<std::vector<int64_t>> held(static_cast<size_t>(bounds.devices));
  for (int64_t e = 0; e < bounds.experts; ++e) {
    lua_rawgeti(L, 2, static_cast<int>(e + 1));
    const std::vector<int64_t> devices = listed_holders(L, e, *p.call);
    lua_pop(L, 1);
    owners.push_back(devices.front());
    for (const int64_t d : devices) {
      std::vector<int64_t>& experts = held[static_cast<size_t>(d)];
      experts.push_back(e);
      if (static_cast<int64_t>(experts.size()) <= bounds.residents) continue;
      throw user_error("p:layout: device {} gets more than its {} slots for residents hold", d + 1,
                       bounds.residents);
    }
  }
  // Weights are those of the old slots.
  for (int64_t e = 0; e < bounds.experts; ++e) placement.set_sharing(e, Sharing::kEven);
  placement.set_residents(owners, held);
  return edited(L);
}

int swap(lua_State* L) {
  PlacementHandle& p = check_placement(L);
  Placement& placement = p.edit();
  const int64_t a = check_expert(L, 2, *p.call), b = check_expert(L, 3, *p.call);
  check_moves(p, "swap");
  const int64_t of_a = placement.owner(a), of_b = placement.owner(b);
  if (of_a != of_b && (placement.holds(of_a, b) || placement.holds(of_b, a))) {
    throw user_error(
        "experts {} and {} cannot be swapped, since the owner of one of them also holds the other; "
        "drop that resident or copy first",
        a + 1, b + 1);
  }
  placement.swap_owners(a, b);
  return edited(L);
}

int drop(lua_State* L) {
  const Edit e = check_edit(L);
  if (e.placement.owner(e.expert) == e.device) {
    throw user_error("device {} owns expert {}, which would be lost; call p:migrate first",
                     e.device + 1, e.expert + 1);
  }
  if (!e.placement.holds(e.device, e.expert)) {
    throw user_error("device {} does not hold expert {}, so there is nothing to drop", e.device + 1,
                     e.expert + 1);
  }
  if (e.placement.is_resident(e.expert, e.device)) check_moves(e.p, "drop");
  e.placement.remove(e.expert, e.device);
  return edited(L);
}

int clear_shadows(lua_State* L) {
  check_placement(L).edit().clear_shadows();
  return edited(L);
}

double called_weight(lua_State* L, int64_t source, int64_t device) {
  lua_pushvalue(L, 3);
  push_number(L, source + 1);
  push_number(L, device + 1);
  call(L, 2, 1);
  const bool number = lua_type(L, -1) == LUA_TNUMBER;
  const double weight = lua_tonumber(L, -1);
  if (!(number && weight >= 0 && weight <= 1e12)) {
    throw user_error(
        "p:share: weight of device {} for tokens of device {} is {}; give a number from 0 to 1e12",
        device + 1, source + 1, number ? fmt::format("{}", weight) : luaL_typename(L, -1));
  }
  lua_pop(L, 1);
  return weight;
}

/// Sets the sharing of an expert by the weights f(source, device) of its holders, scaled so that
/// the largest weight of each source is 2^20.
void share_by(lua_State* L, Placement& placement, int64_t expert) {
  constexpr double kMost = 1 << 20;
  if (!placement.bounds().weighted) {
    throw UserError("p:share: sharing by a function needs weighted = true in the policy");
  }
  const std::vector<int64_t> devices = placement.holders(expert);
  std::vector<double> weights(devices.size());
  for (int64_t source = 0; source < placement.bounds().devices; ++source) {
    double most = 0;
    for (size_t i = 0; i < devices.size(); ++i) {
      weights[i] = called_weight(L, source, devices[i]);
      most = std::max(most, weights[i]);
    }
    if (most == 0) {
      throw user_error(
          "p:share: all weights of expert {} for tokens of device {} are 0; give at least one "
          "holder a weight above 0",
          expert + 1, source + 1);
    }
    for (size_t i = 0; i < devices.size(); ++i) {
      placement.set_weight(source, devices[i], placement.slot_of(expert, devices[i]),
                           std::llround(weights[i] / most * kMost));
    }
  }
  placement.set_sharing(expert, Sharing::kWeighted);
}

int share(lua_State* L) {
  PlacementHandle& p = check_placement(L);
  Placement& placement = p.edit();
  const int64_t e = check_expert(L, 2, *p.call);
  if (lua_isfunction(L, 3)) {
    p.shares = true;
    const auto ends =
        std::unique_ptr<bool, void (*)(bool*)>(&p.shares, [](bool* b) { *b = false; });
    share_by(L, placement, e);
    return edited(L);
  }
  const std::string how = lua_type(L, 3) == LUA_TSTRING ? lua_tostring(L, 3) : "";
  if (how != "local" && how != "even") {
    throw user_error("p:share: {} is not allowed; give 'local', 'even' or a function",
                     how.empty() ? luaL_typename(L, 3) : "'" + how + "'");
  }
  placement.set_sharing(e, how == "even" ? Sharing::kEven : Sharing::kLocal);
  return edited(L);
}

// p:quota(e, tokens) -> p; tokens[device] of the devices with a copy, the owner computes the rest
int quota(lua_State* L) {
  PlacementHandle& p = check_placement(L);
  Placement& placement = p.edit();
  const int64_t e = check_expert(L, 2, *p.call), all = p.call->in->loads.of_expert(e);
  if (!placement.bounds().weighted) throw UserError("p:quota: needs weighted = true in the policy");
  luaL_checktype(L, 3, LUA_TTABLE);
  int64_t rest = all;
  std::map<int64_t, int64_t> copies;  // in the order of devices
  for (lua_pushnil(L); lua_next(L, 3) != 0; lua_pop(L, 1)) {
    const int64_t device = check_device(L, lua_gettop(L) - 1, *p.call);
    const double tokens = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : NAN;
    if (device == placement.owner(e) || !placement.holds(device, e)) {
      throw user_error(
          "p:quota: device {} {} expert {}; give tokens of devices with a copy, the owner computes "
          "the rest",
          device + 1, placement.holds(device, e) ? "owns" : "does not hold", e + 1);
    }
    if (!(tokens >= 0 && tokens <= static_cast<double>(rest) && tokens == std::floor(tokens))) {
      throw user_error(
          "p:quota: {} tokens for device {}; give a whole number from 0 to the {} of the expert's "
          "{} tokens that are left",
          tokens, device + 1, rest, all);
    }
    rest -= copies[device] = static_cast<int64_t>(tokens);
  }
  std::vector<Quota> quotas = {{placement.owner(e), rest}};
  for (const auto& [device, tokens] : copies) quotas.push_back({device, tokens});
  share_by_quota(placement, e, p.call->in->loads, quotas);
  return edited(L);
}

int device_load(lua_State* L) {
  PlacementHandle& p = check_placement(L);
  const int64_t d = check_device(L, 2, *p.call);
  if (!p.loads) p.loads = device_loads(p.placement, p.call->in->loads);
  return push_number(L, p.loads->computed[static_cast<size_t>(d)]);
}

int time_ms(lua_State* L) {
  const PlacementHandle& p = check_placement(L);
  const PlaceInput& in = *p.call->in;
  return push_number(L,
                     placement_s(TimeEquation::kBlocking, p.placement, in.loads, in.rates) * 1e3);
}

int move_ms(lua_State* L) {
  const PlacementHandle& p = check_placement(L);
  const PlaceInput& in = *p.call->in;
  return push_number(L, move_s(in.now, p.placement, in.rates) * 1e3);
}

int free_slots(lua_State* L) {
  const PlacementHandle& p = check_placement(L);
  const int64_t d = check_device(L, 2, *p.call);
  push_number(L, p.placement.free_shadows(d));
  return 1 + push_number(L, p.placement.free_residents(d));
}

// p:free_bytes(d) -> the sum of the bytes of the device's empty slots and of the memory that the
// plan does not use; nothing if the device's memory or the plan's peak is not known
int free_bytes(lua_State* L) {
  const PlacementHandle& p = check_placement(L);
  const int64_t d = check_device(L, 2, *p.call);
  if (!p.call->left) return 0;
  const PlacementRates& rates = p.call->in->rates;
  const auto shadows = static_cast<double>(p.placement.free_shadows(d));
  const auto residents = static_cast<double>(p.placement.free_residents(d));
  return push_number(L, static_cast<double>(*p.call->left) + shadows * rates.expert_bytes +
                            residents * (rates.expert_bytes + rates.state_bytes));
}

}  // namespace

void open_placed(lua_State* L) {
  static constexpr const char* kEdit = "(expert: integer, device: integer): moe.Placement";
  static constexpr Member kPlacement[] = {
      {"owner", "(expert: integer): integer", "the device that owns the expert", method<owner>},
      {"holders", "(expert: integer): integer[]", "devices that hold the expert, the owner first",
       method<holders>},
      {"holds", "(expert: integer, device: integer): boolean",
       "whether the device holds the expert", method<holds>},
      {"copy", "(): moe.Placement",
       "a further placement with the same holders, on which edits can be tried", method<copy>},
      {"shadow", kEdit, "copies the expert to the device for one step", method<shadow>},
      {"replicate", kEdit, "makes the device a resident of the expert, next to its owner",
       method<replicate>},
      {"migrate", kEdit, "makes the device the expert's owner; the optimizer's state moves too",
       method<migrate>},
      {"swap", "(a: integer, b: integer): moe.Placement", "exchanges the owners of two experts",
       method<swap>},
      {"layout", "(holders: integer[][]): moe.Placement",
       "lays out all residents anew: holders[expert] = its devices, the owner first; clears "
       "copies, and holders share an expert's tokens evenly",
       method<layout>},
      {"drop", kEdit,
       "removes the device from the expert's residents or copies; an error for its owner",
       method<drop>},
      {"clear_shadows", "(): moe.Placement", "removes all copies for one step",
       method<clear_shadows>},
      {"share",
       "(expert: integer, how: \"local\"|\"even\"|fun(source: integer, device: integer): number): "
       "moe.Placement",
       "how holders share the expert's tokens: a device that holds the expert takes its own and "
       "the owner the rest (local), all take equally many (even), or by weight (a function)",
       method<share>},
      {"quota", "(expert: integer, tokens: table<integer, integer>): moe.Placement",
       "how many of the expert's tokens each device with a copy computes; the owner computes the "
       "rest. Tokens of a device that holds the expert stay there first. Needs weighted = true",
       method<quota>},
      {"device_load", "(device: integer): integer",
       "rows that the device computes with this placement", method<device_load>},
      {"time_ms", "(): number",
       "time of the layer in a step by Pro-Prophet's model, including its copies", method<time_ms>},
      {"move_ms", "(): number",
       "time to move the residents that the placement in force does not have", method<move_ms>},
      {"free_slots", "(device: integer): integer, integer",
       "the device's free slots for copies, and its free slots for residents", method<free_slots>},
      {"free_bytes", "(device: integer): number?",
       "bytes of memory that the device has left; nil if that is not known", method<free_bytes>}};
  new_type<PlacementHandle>(
      L, {kPlacementType, "p", "a placement of a layer's experts on devices; edits return it",
          kPlacement});
}

}  // namespace moe::lua
