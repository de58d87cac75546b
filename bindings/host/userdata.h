// C++ values in Lua userdata. Each type has a name, under which its values are made, checked and
// destroyed. Recipes cannot read or change the metatables, and reading an unknown member of a value
// is an error that lists the valid names.
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

/// Pushes a T constructed from the arguments. Requires: new_type<T>(L, type, ...) before.
template <class T, class... Args>
T& push_userdata(lua_State* L, const char* type, Args&&... args) {
  T* value = new (lua_newuserdata(L, sizeof(T))) T{std::forward<Args>(args)...};
  luaL_getmetatable(L, type);
  lua_setmetatable(L, -2);
  return *value;
}

/// Checks the memory that the recipe keeps against its cap, as Limits::count_kept does.
void count_kept(lua_State* L);

/// Pushes a T that keeps memory of the engine. Throws UserError if the recipe then keeps more
/// memory than its cap allows.
template <class T, class... Args>
T& push_kept(lua_State* L, const char* type, Args&&... args) {
  T& value = push_userdata<T>(L, type, std::forward<Args>(args)...);
  count_kept(L);
  return value;
}

/// Throws the UserError for an argument `index` that is not a value of the type.
[[noreturn]] void refuse_argument(lua_State* L, int index, const char* type);

/// Returns the T at `index`. Throws UserError naming both types if it is something else.
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

/// Checks that the argument `index` is a whole number from 1 to `limit`; returns it minus 1. Throws
/// a UserError that begins with `what` ("expert") if it is not.
int64_t check_index(lua_State* L, int index, int64_t limit, const char* what);

/// Throws a UserError that begins with `what` if the table has a key that is not in `names`.
void check_keys(lua_State* L, int table, std::string_view what,
                const std::vector<std::string>& names);

/// The __index of a type's table of methods: throws UserError for an unknown name, with the valid
/// ones. Upvalues: the type's name, the methods, a list of the names of fields.
int unknown_member(lua_State* L);
/// The __newindex of every type: throws UserError. Upvalue: the type's name.
int refuse_assignment(lua_State* L);

/// For an `index` function (see new_type): if argument 2, the key, is the name of a method, pushes
/// the method and returns true; else pushes nothing and returns false.
inline bool push_method(lua_State* L) {
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(1));
  if (!lua_isnil(L, -1)) return true;
  lua_pop(L, 1);
  return false;
}

/// For an `index` function: throws the UserError for a key that is not a name of the type.
inline int no_such_member(lua_State* L) {
  lua_pushvalue(L, 2);
  lua_gettable(L, lua_upvalueindex(1));
  return 1;
}

/// Makes the metatable of a type. Recipes cannot access it (__metatable is false), and reading a
/// name that the type does not have is a UserError. __index is the table of methods, or, if `index`
/// is given, that function with the methods as upvalue 1; `fields` are the names that it accepts in
/// addition to the methods.
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
