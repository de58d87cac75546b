// core.lina_popularity: the profile of the tokens' paths from which Lina's inference estimates how
// popular the experts of a layer will be.
#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/host.h"
#include "bindings/host/userdata.h"
#include "bindings/infer.h"
#include "bindings/routing.h"
#include "engine/sim/routed_batch.h"

namespace moe::lua {
namespace {

// ({ routing, step from 1, ranks, tokens, experts, k, layers, batches, path, keep, shorter }), the
// last three as in ProfileSpec -> the profile's handle, its number of paths
int popularity(lua_State* L) {
  Host::of(L).end_loading();
  const nlohmann::json values = to_json(L, 1, true);
  const Fields f(values, "moe.lina.popularity");
  const auto routing = routing_in(L, 1);
  const Host::EngineCall call(Host::of(L));
  const auto made = std::make_shared<const PathProfile>(
      profile_paths(*routing, {.first = {.step = f.integer("step") - 1,
                                         .ranks = f.integer("ranks"),
                                         .tokens = f.integer("tokens"),
                                         .experts = f.integer("experts"),
                                         .k = f.integer("k")},
                               .layers = f.integer("layers"),
                               .batches = f.integer("batches"),
                               .path = f.integer("path"),
                               .keep = f.integer("keep", 0),
                               .shorter = f.flag("shorter", false)}));
  int64_t paths = 0;
  for (int64_t m = 0; m < made->options().layers; ++m) paths += made->num_paths(m);
  push_kept<ProfileHandle>(L, kProfileType, made);
  lua_pushnumber(L, static_cast<double>(paths));
  return 2;
}

}  // namespace

void open_lina(lua_State* L) {
  set_functions(L, {{"lina_popularity", core_function<popularity>}});
  new_inner_type<ProfileHandle>(L, kProfileType);
}

}  // namespace moe::lua
