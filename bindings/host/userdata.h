// C++ values inside Lua userdata: made, checked and destroyed by type name.
#pragma once

#include <lua.hpp>
#include <new>
#include <span>
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

/// A name of a type that recipes see, as `moebench doc` and the type stubs show it. type: of a
/// field, as "integer"; of a method its signature, as "(expert: integer): boolean". function: of a
/// field what pushes it, called with the value and the name; of a method method<f>. The name "()"
/// stands for the call of the value itself, "#" for its length.
struct Member {
  const char* name;
  const char* type;
  const char* doc;
  lua_CFunction function;

  bool is_method() const { return type[0] == '('; }
};

/// A type that recipes see. as: what examples and documents call a value of it.
struct TypeDef {
  const char* name;
  const char* as;
  const char* doc;
  std::span<const Member> members;
};

/// Adds the type to core.table "types", of which `moebench doc` and the stubs are made. Throws
/// InternalError that names the type or the member that has no doc, no type or no function.
void declare_type(lua_State* L, const TypeDef& type);
/// All that were declared: { name, as, doc, members = { { name, type, doc } } } each.
void push_types(lua_State* L);

/// __index: raises UserError for a name that is none, listing those there are. Upvalues: the type's
/// name, a table of the methods, a table of what reads fields.
int unknown_member(lua_State* L);

/// Makes the metatable of a type. Takes two tables from the stack: the type's methods, and what
/// reads its fields. destroy: may be null. Recipes cannot get at the metatable (__metatable is
/// false), cannot assign, and reading a name that the type does not have is a UserError.
void make_type(lua_State* L, const char* type, lua_CFunction destroy);
/// The two tables of the members; those of "()" and "#" are in neither.
void push_members(lua_State* L, std::span<const Member> members);

/// Sets a metamethod of a type.
inline void set_metamethod(lua_State* L, const char* type, const char* name, lua_CFunction f) {
  luaL_getmetatable(L, type);
  lua_pushcfunction(L, f);
  lua_setfield(L, -2, name);
  lua_pop(L, 1);
}

template <class T>
constexpr lua_CFunction destroyer() {
  return std::is_trivially_destructible_v<T> ? nullptr : destroy_userdata<T>;
}

/// A type that recipes see.
template <class T>
void new_type(lua_State* L, const TypeDef& type) {
  declare_type(L, type);
  push_members(L, type.members);
  make_type(L, type.name, destroyer<T>());
  for (const Member& m : type.members) {
    if (m.name == std::string_view("()")) set_metamethod(L, type.name, "__call", m.function);
    if (m.name == std::string_view("#")) set_metamethod(L, type.name, "__len", m.function);
  }
}

/// A type that only the library of Lua sees, which documents what it makes of it.
template <class T>
void new_inner_type(lua_State* L, const char* type, const luaL_Reg* methods = nullptr) {
  lua_newtable(L);
  if (methods != nullptr) luaL_setfuncs(L, methods, 0);
  lua_newtable(L);
  make_type(L, type, destroyer<T>());
}

}  // namespace moe::lua
