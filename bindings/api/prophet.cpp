// core.prophet_plan and core.prophet_place: Pro-Prophet's planner, and any placement policy,
// applied to counts that a recipe gives.
#include "engine/placement/prophet.h"
#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/field_json.h"
#include "bindings/host/host.h"
#include "engine/base/errors.h"
#include "engine/placement/quota.h"

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

// Gives experts the holders that a policy in Lua returned. placed: { moves, holders }, where
// holders[expert] is a list of { device, tokens } or { device, weights }, the owner first, devices
// from 1; weights[source]. moves: whether all holders are residents, of which owners may differ
// from those of `now`; otherwise all but the owners get copies.
Placement placed_of(const json& placed, const Placement& now, const ExpertCounts& loads) {
  const json& holders = placed.at("holders");
  const auto device_of = [](const json& holder) { return holder.at("device").get<int64_t>() - 1; };
  Placement next = now;
  if (placed.at("moves").get<bool>()) {
    std::vector<int64_t> owners;
    std::vector<std::vector<int64_t>> held(static_cast<size_t>(now.bounds().devices));
    for (const json& list : holders) {
      const auto expert = static_cast<int64_t>(owners.size());
      owners.push_back(device_of(list.at(0)));
      for (const json& h : list) held.at(static_cast<size_t>(device_of(h))).push_back(expert);
    }
    next.set_residents(owners, held);
  }
  for (int64_t e = 0; e < now.bounds().experts; ++e) {
    const json& list = holders.at(static_cast<size_t>(e));
    if (list.size() == 1) continue;
    std::vector<Quota> quotas;
    for (const json& holder : list) {
      const int64_t device = device_of(holder);
      if (!next.holds(device, e)) next.add_shadow(e, device);
      if (holder.contains("tokens")) quotas.push_back({device, holder.at("tokens").get<int64_t>()});
    }
    if (!quotas.empty()) {
      share_by_quota(next, e, loads, quotas);
      continue;
    }
    next.set_sharing(e, Sharing::kWeighted);
    for (const json& holder : list) {
      const int64_t device = device_of(holder), slot = next.slot_of(e, device);
      for (int64_t s = 0; s < loads.sources; ++s) {
        const json& weight = holder.at("weights").at(static_cast<size_t>(s));
        next.set_weight(s, device, slot, weight.get<int64_t>());
      }
    }
  }
  next.check();
  return next;
}

// Adds the fields of moe.ProphetPlaced that are times.
void add_times(json& result, const Placement& now, const Placement& next, const PlaceInput& input,
               TimeEquation equation) {
  const auto time_s = [&](const Placement& placement) {
    return placement_s(equation, placement, input.loads, input.rates, input.experts_before_s);
  };
  const double after = time_s(next), before = time_s(now);
  result["time_s"] = after;
  result["time_without_s"] = before;
  result["move_s"] = move_s(now, next, input.rates);
  result["break_even_steps"] = break_even_steps(result["move_s"], before - after);
}

// ({ routed, policy or placed as in placed_of, options, equation, residents, shadows, rates as in
// rates_of or none }) -> the fields of moe.ProphetPlaced, without times if there are no rates.
// residents, shadows: slots per device, or none for the defaults below; equation: 6 or 8, the
// paper's number of the time formula (TimeEquation).
int place(lua_State* L) {
  constexpr const char* kWho = "moe.prophet.place";
  Host::of(L).end_loading();
  const json values = to_json(L, 1);
  const Fields fields(values, kWho);
  const ExpertCounts loads = loads_of(values.at("routed"), kWho);
  const PlacementPolicy* policy =
      fields.has("placed") ? nullptr : &builtin_policy(fields.text("policy"));
  const Placement now({.experts = loads.experts,
                       .devices = loads.sources,
                       .residents = fields.integer("residents", experts_a_device(loads)),
                       .shadows = fields.integer("shadows", loads.experts),
                       .weighted = policy == nullptr || policy->defaults.weighted});
  const bool timed = fields.has("bytes_per_s");
  const PlaceInput input{.loads = loads,
                         .now = now,
                         .rates = timed ? rates_of(fields, kWho) : PlacementRates{},
                         .experts_before_s = experts_before_s(fields)};
  const Placement next =
      policy == nullptr
          ? placed_of(values.at("placed"), now, loads)
          : policy->place(input, resolved(*policy, values.at("options").get<PolicyOptions>()));
  json result = loads_json(device_loads(now, loads), device_loads(next, loads));
  if (timed) {
    add_times(result, now, next, input, static_cast<TimeEquation>(fields.integer("equation")));
  }
  result["holders"] = holders_json(next);
  push_json(L, result);
  return 1;
}

}  // namespace

void open_prophet(lua_State* L) {
  set_functions(L, {{"prophet_place", core_function<with_effect<place>>},
                    {"prophet_plan", core_function<with_effect<plan>>}});
}

}  // namespace moe::lua
