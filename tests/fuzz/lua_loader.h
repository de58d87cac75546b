// Loaders that are Lua: one state for all inputs of a process, without effects beyond its folder.
#pragma once

#include <filesystem>

#include "bindings/host/host.h"
#include "engine/base/errors.h"
#include "tests/fuzz/mutate.h"

namespace moe::fuzz {

class LuaLoader {
 public:
  /// `code` returns a function, which is called for each input.
  explicit LuaLoader(const std::string& code) : host_(options()) {
    lua_State* const L = host_.state();
    MOE_CHECK(luaL_loadstring(L, code.c_str()) == 0, "{}", lua_tostring(L, -1));
    lua::call(L, 0, 1);
    function_ = luaL_ref(L, LUA_REGISTRYINDEX);
  }

  /// Throws InternalError for a Lua error that is no error of the user's.
  void load() {
    lua_State* const L = host_.state();
    lua_rawgeti(L, LUA_REGISTRYINDEX, function_);
    lua::Failure failure;
    if (lua::try_call(L, 0, 0, failure)) return;
    MOE_CHECK(failure.kind == "user", "{}: {}\n{}", failure.kind, failure.message,
              failure.traceback);
  }

 private:
  static lua::HostOptions options() {
    lua::HostOptions options;
    options.scripts_dir = std::filesystem::path(MOE_SOURCE_DIR) / "scripts";
    options.mode = "report";
    options.folders = {folder()};
    options.out_dir = folder() + "/out";
    options.cache = ":memory:";
    return options;
  }

  lua::Host host_;
  int function_;
};

}  // namespace moe::fuzz
