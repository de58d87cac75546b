#include "bindings/front/front.h"

#include <filesystem>

#include "bindings/front/requests.h"
#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/host.h"
#include "bindings/sweep/simulation_cache.h"

namespace moe::lua {
namespace {

// (name, text) -> the function of a text of the session, which ranks that need a policy of the
// session evaluate again, in order. A text that is an expression returns its value.
int load_text(lua_State* L) {
  Host::of(L).push_session_text(L, {text_argument(L, 1), text_argument(L, 2)});
  return 1;
}

// (f) -> true and what f() returns, or false and its error. An interruption ends f alone.
int guarded(lua_State* L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_pushboolean(L, 1);
  lua_insert(L, 1);
  Failure failure;
  if (Host::of(L).guarded(L, failure)) return lua_gettop(L);
  lua_settop(L, 0);
  lua_pushboolean(L, 0);
  push_failure(L, failure);
  return 2;
}

// () -> the line of the next request; nothing at the end of the input. A request to stop that came
// until then is withdrawn.
int next_request(lua_State* L) {
  Host& host = Host::of(L);
  const auto line = host.options().requests->next();
  if (!line) return 0;
  host.go_on();
  push_text(L, *line);
  return 1;
}

// (text): writes an answer
int answer(lua_State* L) {
  Host::of(L).options().requests->write(text_argument(L, 1));
  return 0;
}

// (name): removes a folder in the output folder, with all that is in it
int remove_output(lua_State* L) {
  std::error_code error;
  const auto path = Host::of(L).files().writable(text_argument(L, 1) + "/any");
  std::filesystem::remove_all(path.parent_path(), error);
  return 0;
}

// (text) -> its hash, as results have that of a recipe
int hash_of(lua_State* L) {
  push_text(L, fmt::format("{:016x}", text_hash(text_argument(L, 1))));
  return 1;
}

// (profile cache, {profile cache, ...}): adds the simulations that are kept beside the others to
// those beside the first -> how many were new
int merge_simulations(lua_State* L) {
  SimulationCache to(simulations_beside(text_argument(L, 1)));
  int64_t added = 0;
  for (const auto& from : to_json(L, 2)) {
    added += to.add(simulations_beside(from.get<std::string>()));
  }
  lua_pushnumber(L, static_cast<double>(added));
  return 1;
}

}  // namespace

void open_front(lua_State* L) {
  static constexpr luaL_Reg kFunctions[] = {{"answer", core_function<answer>},
                                            {"guarded", core_function<guarded>},
                                            {"load_text", core_function<load_text>},
                                            {"merge_simulations", core_function<merge_simulations>},
                                            {"next_request", core_function<next_request>},
                                            {"read_line", core_function<read_line>},
                                            {"remove_output", core_function<remove_output>},
                                            {"run_program", core_function<run_program>},
                                            {"text_hash", core_function<hash_of>},
                                            {nullptr, nullptr}};
  luaL_setfuncs(L, kFunctions, 0);
}

}  // namespace moe::lua
