// core.prophet_plan and core.prophet_place: Pro-Prophet's planner, and any placement policy,
// applied to counts that a recipe gives.
#include "engine/placement/prophet.h"
#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/field_json.h"
#include "bindings/host/host.h"
#include "engine/base/errors.h"

namespace moe::lua {
namespace {

using nlohmann::json;

// Reads the counts routed[expert][device]; all rows have the same length.
ExpertCounts loads_of(const json& routed, const char* who) {
  constexpr double kMost = 0x1p53;  // doubles hold whole numbers exactly up to this sum
  ExpertCounts loads(static_cast<int64_t>(routed.at(0).size()),
                     static_cast<int64_t>(routed.size()));
  double all = 0;
  for (int64_t e = 0; e < loads.experts; ++e) {
    const json& row = routed.at(static_cast<size_t>(e));
    for (int64_t d = 0; d < loads.sources; ++d) {
      loads.at(d, e) = row.at(static_cast<size_t>(d)).get<int64_t>();
      all += static_cast<double>(loads.at(d, e));
    }
  }
  if (all > kMost) {
    throw user_error("{}.routed: the numbers add up to {:.4g} inputs; at most 2^53 are allowed",
                     who, all);
  }
  return loads;
}

int64_t experts_a_device(const ExpertCounts& loads) {
  return (loads.experts + loads.sources - 1) / loads.sources;
}

std::vector<int64_t> owners_of(const ExpertCounts& loads) {
  const Placement in_order(
      {.experts = loads.experts, .devices = loads.sources, .residents = experts_a_device(loads)});
  return {in_order.codes().begin(), in_order.codes().begin() + loads.experts};
}

PlacementRates rates_of(const Fields& fields, const char* who) {
  PlacementRates rates;
  read_fields(fields, rates);
  rates.a2a_bytes_per_s = fields.number("bytes_per_s");
  check(rates, who);
  return rates;
}

std::optional<double> experts_before_s(const Fields& fields) {
  if (!fields.has("experts_before_s")) return std::nullopt;
  return fields.number("experts_before_s");
}

// Returns the fields that the results of core.prophet_plan and core.prophet_place share: rows per
// device and their balance, without (`before`) and with (`after`) the placement, and rb.
json loads_json(const DeviceLoads& before, const DeviceLoads& after) {
  return {{"computed", after.computed},
          {"received", after.received},
          {"computed_without", before.computed},
          {"received_without", before.received},
          {"balance", balance_degree(after.computed)},
          {"balance_without", balance_degree(before.computed)},
          {"rb", balance_ratio(before.computed, after.computed)}};
}

json plan_json(const ProphetPlan& plan) {
  json selected = json::array();
  for (const Selected& s : plan.selected) {
    json devices = json::array();
    for (const int64_t d : s.devices) devices.push_back(d + 1);
    selected.push_back({{"expert", s.expert + 1}, {"devices", devices}});
  }
  json result = loads_json(plan.loads_without, plan.loads);
  result["selected"] = selected;
  result["time_s"] = plan.time_s;
  result["time_without_s"] = plan.time_without_s;
  return result;
}

// ({ routed, alpha, n or none, equation (6 or 8, as in `place`), max_selected, rates as in rates_of
// }) -> the result of moe.prophet.plan
int plan(lua_State* L) {
  constexpr const char* kWho = "moe.prophet.plan";
  const json values = to_json(L, 1);
  const Fields fields(values, kWho);
  const ExpertCounts loads = loads_of(values.at("routed"), kWho);
  const PlacementRates rates = rates_of(fields, kWho);
  const ProphetOptions options{.alpha = fields.number("alpha"),
                               .n = fields.integer("n", ProphetOptions::kAuto),
                               .equation = static_cast<TimeEquation>(fields.integer("equation")),
                               .experts_before_s = experts_before_s(fields),
                               .most = fields.integer("max_selected", loads.experts)};
  push_json(L, plan_json(plan_prophet(loads, owners_of(loads), rates, options)));
  return 1;
}

json holders_json(const Placement& placement) {
  json holders = json::array();
  for (int64_t e = 0; e < placement.bounds().experts; ++e) {
    json devices = {placement.owner(e) + 1};
    for (const int64_t d : placement.holders(e)) {
      if (d != placement.owner(e)) devices.push_back(d + 1);
    }
    holders.push_back(std::move(devices));
  }
  return holders;
}

// ({ routed, policy, options, equation, residents, shadows, rates as in rates_of }) -> the fields
// of moe.ProphetPlaced. residents, shadows: slots per device, or none for the defaults below;
// equation: 6 or 8, the paper's number of the time formula (TimeEquation).
int place(lua_State* L) {
  constexpr const char* kWho = "moe.prophet.place";
  const json values = to_json(L, 1);
  const Fields fields(values, kWho);
  const ExpertCounts loads = loads_of(values.at("routed"), kWho);
  const Placement now({.experts = loads.experts,
                       .devices = loads.sources,
                       .residents = fields.integer("residents", experts_a_device(loads)),
                       .shadows = fields.integer("shadows", loads.experts)});
  const PlaceInput input{.loads = loads,
                         .now = now,
                         .rates = rates_of(fields, kWho),
                         .experts_before_s = experts_before_s(fields)};
  const PlacementPolicy& policy = builtin_policy(fields.text("policy"));
  const PolicyOptions given = values.at("options").get<PolicyOptions>();
  const Placement next = policy.place(input, resolved(policy, given));
  const auto equation = static_cast<TimeEquation>(fields.integer("equation"));
  json result = loads_json(device_loads(now, loads), device_loads(next, loads));
  const auto time_s = [&](const Placement& placement) {
    return placement_s(equation, placement, loads, input.rates, input.experts_before_s);
  };
  result["time_s"] = time_s(next);
  result["time_without_s"] = time_s(now);
  result["move_s"] = move_s(now, next, input.rates);
  result["break_even_steps"] = break_even_steps(
      result["move_s"], result["time_without_s"].get<double>() - result["time_s"].get<double>());
  result["holders"] = holders_json(next);
  push_json(L, result);
  return 1;
}

}  // namespace

void open_prophet(lua_State* L) {
  static constexpr luaL_Reg kFunctions[] = {{"prophet_place", core_function<with_effect<place>>},
                                            {"prophet_plan", core_function<with_effect<plan>>},
                                            {nullptr, nullptr}};
  luaL_setfuncs(L, kFunctions, 0);
}

}  // namespace moe::lua
