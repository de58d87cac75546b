// A Lua value that C++ keeps alive, by an entry in the registry of its Lua state. It may only be
// used on the thread that uses the state's Host (host/host.h).
#pragma once

#include <lua.hpp>
#include <memory>

#include "bindings/host/host.h"

namespace moe::lua {

class Reference {
 public:
  /// Pops the value from the top of the stack and keeps it.
  explicit Reference(lua_State* L)
      : state_(Host::of(L).state()), key_(luaL_ref(L, LUA_REGISTRYINDEX)) {}
  ~Reference() { luaL_unref(state_, LUA_REGISTRYINDEX, key_); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  void push(lua_State* L) const { lua_rawgeti(L, LUA_REGISTRYINDEX, key_); }

 private:
  lua_State* state_;  // the main state, since a coroutine may be destroyed earlier
  int key_;
};

/// A Reference for std::function, which copies what it captures.
using SharedReference = std::shared_ptr<const Reference>;

}  // namespace moe::lua
