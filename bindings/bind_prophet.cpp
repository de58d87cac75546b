// core.prophet_plan: Pro-Prophet's planner on counts that a recipe gives.
#include "bindings/convert.h"
#include "bindings/core.h"
#include "bindings/host.h"
#include "engine/placement/prophet.h"

namespace moe::lua {
namespace {

using nlohmann::json;

// routed[expert][device], all rows as long
Loads loads_of(const json& routed) {
  Loads loads(static_cast<int64_t>(routed.at(0).size()), static_cast<int64_t>(routed.size()));
  for (int64_t e = 0; e < loads.experts; ++e) {
    const json& row = routed.at(static_cast<size_t>(e));
    for (int64_t d = 0; d < loads.sources; ++d) {
      loads.at(d, e) = row.at(static_cast<size_t>(d)).get<int64_t>();
    }
  }
  return loads;
}

std::vector<int64_t> owners_of(const Loads& loads) {
  const Placement in_order({.experts = loads.experts,
                            .devices = loads.sources,
                            .residents = (loads.experts + loads.sources - 1) / loads.sources});
  return {in_order.codes().begin(), in_order.codes().begin() + loads.experts};
}

json plan_json(const ProphetPlan& plan) {
  json selected = json::array();
  for (const Selected& s : plan.selected) {
    json devices = json::array();
    for (const int64_t d : s.devices) devices.push_back(d + 1);
    selected.push_back({{"expert", s.expert + 1}, {"devices", devices}});
  }
  const DeviceLoads &before = plan.loads_without, &after = plan.loads;
  return {{"selected", selected},
          {"time_s", plan.time_s},
          {"time_without_s", plan.time_without_s},
          {"computed", after.computed},
          {"received", after.received},
          {"computed_without", before.computed},
          {"received_without", before.received},
          {"balance", balance_degree(after.computed)},
          {"balance_without", balance_degree(before.computed)},
          {"rb", balance_ratio(before.computed, after.computed)}};
}

// ({ routed, rates, alpha, n or none, equation, max_selected }) -> as moe.prophet.plan
int plan(lua_State* L) {
  constexpr const char* kWho = "moe.prophet.plan";
  const json values = to_json(L, 1);
  const Fields fields(values, kWho);
  const Loads loads = loads_of(values.at("routed"));
  const PlaceRates rates{.input_bytes = fields.number("input_bytes"),
                         .expert_bytes = fields.number("expert_bytes"),
                         .a2a_bytes_per_s = fields.number("bytes_per_s"),
                         .copy_bytes_per_s = fields.number("copy_bytes_per_s", 0),
                         .inputs_per_s = fields.number("inputs_per_s"),
                         .fnec_s = fields.number("fnec_s"),
                         .bnec_s = fields.number("bnec_s")};
  check(rates, kWho);
  const ProphetOptions options{.alpha = fields.number("alpha"),
                               .n = fields.integer("n", ProphetOptions::kAuto),
                               .equation = static_cast<TimeEquation>(fields.integer("equation")),
                               .most = fields.integer("max_selected", loads.experts)};
  push_json(L, plan_json(plan_prophet(loads, owners_of(loads), rates, options)));
  return 1;
}

}  // namespace

void open_prophet(lua_State* L) {
  static constexpr luaL_Reg kFunctions[] = {{"prophet_plan", core_function<plan>},
                                            {nullptr, nullptr}};
  luaL_setfuncs(L, kFunctions, 0);
}

}  // namespace moe::lua
