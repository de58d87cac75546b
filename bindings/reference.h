// A Lua value held by C++: a place in the registry. Used on its host's thread only.
#pragma once

#include <lua.hpp>
#include <memory>

#include "bindings/host/host.h"

namespace moe::lua {

class Reference {
 public:
  /// Takes the value on top of the stack.
  explicit Reference(lua_State* L)
      : state_(Host::of(L).state()), key_(luaL_ref(L, LUA_REGISTRYINDEX)) {}
  ~Reference() { luaL_unref(state_, LUA_REGISTRYINDEX, key_); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  void push(lua_State* L) const { lua_rawgeti(L, LUA_REGISTRYINDEX, key_); }

 private:
  lua_State* state_;  // the main one: coroutines may be gone first
  int key_;
};

/// For std::function, which copies.
using SharedReference = std::shared_ptr<const Reference>;

}  // namespace moe::lua
