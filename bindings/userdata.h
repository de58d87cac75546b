// C++ values inside Lua userdata: made, checked and destroyed by type name.
#pragma once

#include <lua.hpp>
#include <new>
#include <type_traits>
#include <utility>

#include "bindings/protected.h"

namespace moe::lua {

/// Pushes a T made of the arguments. Requires: new_type<T>(L, name, ...) before.
template <class T, class... Args>
T& push_userdata(lua_State* L, const char* type, Args&&... args) {
  T* value = new (lua_newuserdata(L, sizeof(T))) T{std::forward<Args>(args)...};
  luaL_getmetatable(L, type);
  lua_setmetatable(L, -2);
  return *value;
}

/// The T at `index`. Throws UserError naming the types when it is something else.
template <class T>
T& check_userdata(lua_State* L, int index, const char* type) {
  void* value = lua_touserdata(L, index);
  bool good = false;
  if (value != nullptr && lua_getmetatable(L, index) != 0) {
    luaL_getmetatable(L, type);
    good = lua_rawequal(L, -1, -2) != 0;
    lua_pop(L, 2);
  }
  if (!good) {
    throw user_error("argument {}: a {} is not allowed; give a {} (is a ':' missing?)", index,
                     luaL_typename(L, index), type);
  }
  return *static_cast<T*>(value);
}

template <class T>
int destroy_userdata(lua_State* L) {
  static_cast<T*>(lua_touserdata(L, 1))->~T();
  return 0;
}

/// Makes the metatable of a type. Recipes cannot get at it (__metatable is false). Methods stand in
/// __index unless `index` is given, which then is called as a function with the methods as upvalue
/// 1.
template <class T>
void new_type(lua_State* L, const char* type, const luaL_Reg* methods,
              lua_CFunction index = nullptr) {
  luaL_newmetatable(L, type);
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  if constexpr (!std::is_trivially_destructible_v<T>) {
    lua_pushcfunction(L, destroy_userdata<T>);
    lua_setfield(L, -2, "__gc");
  }
  lua_newtable(L);
  luaL_setfuncs(L, methods, 0);
  if (index != nullptr) lua_pushcclosure(L, index, 1);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

/// Sets a metamethod of a type made by new_type.
inline void set_metamethod(lua_State* L, const char* type, const char* name, lua_CFunction f) {
  luaL_getmetatable(L, type);
  lua_pushcfunction(L, f);
  lua_setfield(L, -2, name);
  lua_pop(L, 1);
}

}  // namespace moe::lua
