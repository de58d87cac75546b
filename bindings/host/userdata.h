// C++ values inside Lua userdata: made, checked and destroyed by type name.
#pragma once

#include <lua.hpp>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/host/protected.h"

namespace moe::lua {

/// Pushes a T made of the arguments. Requires: new_type<T>(L, name, ...) before.
template <class T, class... Args>
T& push_userdata(lua_State* L, const char* type, Args&&... args) {
  T* value = new (lua_newuserdata(L, sizeof(T))) T{std::forward<Args>(args)...};
  luaL_getmetatable(L, type);
  lua_setmetatable(L, -2);
  return *value;
}

/// What the engine keeps for the recipe counts against its cap from here on (Limits::count_kept).
void count_kept(lua_State* L);

/// Pushes a T that holds memory of the engine's. Throws UserError where the recipe then keeps more
/// than it may.
template <class T, class... Args>
T& push_kept(lua_State* L, const char* type, Args&&... args) {
  T& value = push_userdata<T>(L, type, std::forward<Args>(args)...);
  count_kept(L);
  return value;
}

/// Throws UserError for the argument `index`, which is no value of the type.
[[noreturn]] void refuse_argument(lua_State* L, int index, const char* type);

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
    refuse_argument(L, index, type);
  }
  return *static_cast<T*>(value);
}

template <class T>
int destroy_userdata(lua_State* L) {
  static_cast<T*>(lua_touserdata(L, 1))->~T();
  return 0;
}

/// A whole number from 1 to `limit` as the argument `index`, returned counted from 0. Throws
/// UserError that begins with `what` ("expert").
int64_t check_index(lua_State* L, int index, int64_t limit, const char* what);

/// Throws UserError for a key of the table that is none of `names`; it begins with `what`.
void check_keys(lua_State* L, int table, std::string_view what,
                const std::vector<std::string>& names);

/// __index of a type's methods: raises UserError for a name that is none, listing those there are.
/// Upvalues: the type's name, the methods, a list of the names of fields.
int unknown_member(lua_State* L);
/// __newindex of every type: raises UserError. Upvalue: the type's name.
int refuse_assignment(lua_State* L);

/// For an `index` function (below): pushes the method called like the key, argument 2, and returns
/// true; or pushes nothing.
inline bool push_method(lua_State* L) {
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(1));
  if (!lua_isnil(L, -1)) return true;
  lua_pop(L, 1);
  return false;
}

/// For an `index` function: raises UserError, since the key is no name of the type.
inline int no_such_member(lua_State* L) {
  lua_pushvalue(L, 2);
  lua_gettable(L, lua_upvalueindex(1));
  return 1;
}

/// Makes the metatable of a type. Recipes cannot get at it (__metatable is false), and reading a
/// name that the type does not have is a UserError. Methods stand in __index unless `index` is
/// given, which then is called as a function with the methods as upvalue 1; `fields` are the names
/// that it knows beside the methods.
template <class T>
void new_type(lua_State* L, const char* type, const luaL_Reg* methods,
              lua_CFunction index = nullptr, const std::vector<std::string>& fields = {}) {
  luaL_newmetatable(L, type);
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pushstring(L, type);
  lua_pushcclosure(L, method<refuse_assignment>, 1);
  lua_setfield(L, -2, "__newindex");
  if constexpr (!std::is_trivially_destructible_v<T>) {
    lua_pushcfunction(L, destroy_userdata<T>);
    lua_setfield(L, -2, "__gc");
  }
  lua_newtable(L);
  luaL_setfuncs(L, methods, 0);
  lua_createtable(L, 0, 1);
  lua_pushstring(L, type);
  lua_pushvalue(L, -3);
  lua_createtable(L, static_cast<int>(fields.size()), 0);
  for (size_t i = 0; i < fields.size(); ++i) {
    lua_pushstring(L, fields[i].c_str());
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  lua_pushcclosure(L, method<unknown_member>, 3);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
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
