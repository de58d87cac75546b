// core.workload and core.loads: routing laws by name, and what they say.
#include "bindings/convert.h"
#include "bindings/core.h"
#include "bindings/host.h"
#include "bindings/routing.h"
#include "bindings/userdata.h"
#include "engine/routing/workload.h"

namespace moe::lua {
namespace {

// (name, options, seed) -> law, its full name
int make_workload(lua_State* L) {
  const nlohmann::json options = to_json(L, 2);
  WorkloadOptions given;
  for (const auto& [name, value] : options.items()) given[name] = value.get<double>();
  push_law(L,
           workload(luaL_checkstring(L, 1), given, static_cast<uint64_t>(luaL_checknumber(L, 3))));
  return 2;
}

// (law, { step, layer from 1, ranks, tokens, experts, k }) -> [source][expert]
int loads(lua_State* L) {
  const LawBox& box = check_userdata<LawBox>(L, 1, kLawType);
  const nlohmann::json values = to_json(L, 2);
  const Fields fields(values, "loads");
  const RoutingQuery query = {.step = fields.integer("step") - 1,
                              .layer = fields.integer("layer") - 1,
                              .ranks = fields.integer("ranks"),
                              .tokens = fields.integer("tokens"),
                              .experts = fields.integer("experts"),
                              .k = fields.integer("k")};
  const Host::EngineCall call(Host::of(L));
  const Loads loads = box.law->loads(query);
  lua_createtable(L, static_cast<int>(loads.sources), 0);
  for (int64_t s = 0; s < loads.sources; ++s) {
    lua_createtable(L, static_cast<int>(loads.experts), 0);
    for (int64_t e = 0; e < loads.experts; ++e) {
      lua_pushnumber(L, static_cast<double>(loads.at(s, e)));
      lua_rawseti(L, -2, static_cast<int>(e + 1));
    }
    lua_rawseti(L, -2, static_cast<int>(s + 1));
  }
  return 1;
}

}  // namespace

std::shared_ptr<const RoutingLaw> law_in(lua_State* L, int index) {
  lua_getfield(L, index, "routing");
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    return nullptr;
  }
  lua_getfield(L, -1, "law");
  std::shared_ptr<const RoutingLaw> law = check_userdata<LawBox>(L, lua_gettop(L), kLawType).law;
  lua_pop(L, 2);
  return law;
}

void push_law(lua_State* L, RoutingLaw law) {
  const std::string name = law.name;
  push_userdata<LawBox>(L, kLawType, std::make_shared<const RoutingLaw>(std::move(law)));
  lua_pushlstring(L, name.data(), name.size());
}

void open_routing(lua_State* L) {
  static constexpr luaL_Reg kFunctions[] = {{"loads", core_function<loads>},
                                            {"workload", core_function<make_workload>},
                                            {nullptr, nullptr}};
  static constexpr luaL_Reg kMethods[] = {{nullptr, nullptr}};
  luaL_setfuncs(L, kFunctions, 0);
  new_type<LawBox>(L, kLawType, kMethods);
}

}  // namespace moe::lua
