// A Lua value held by C++: a place in the registry. Used on the state's own thread only.
#pragma once

#include <lua.hpp>
#include <memory>

namespace moe::lua {

class Reference {
 public:
  /// Takes the value on top of the stack.
  explicit Reference(lua_State* L) : state_(L), key_(luaL_ref(L, LUA_REGISTRYINDEX)) {}
  ~Reference() { luaL_unref(state_, LUA_REGISTRYINDEX, key_); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  void push() const { lua_rawgeti(state_, LUA_REGISTRYINDEX, key_); }
  lua_State* state() const { return state_; }

 private:
  lua_State* state_;
  int key_;
};

/// For std::function, which copies.
using SharedReference = std::shared_ptr<const Reference>;

}  // namespace moe::lua
