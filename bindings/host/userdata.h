// C++ values in Lua userdata. Each type has a name, under which its values are made, checked and
// destroyed. Recipes cannot read or change the metatables, and reading an unknown member of a value
// is an error that lists the valid names.
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

/// A field or method of a type that recipes see, as `moebench doc` and the type stubs show it.
/// type: "integer" of a field, or the signature of a method, "(expert: integer): boolean".
/// function: pushes the field, called with the value and the name; for a method, method<f>. The
/// member "()" is the call of the value itself, "#" is its length.
struct Member {
  const char* name;
  const char* type;
  const char* doc;
  lua_CFunction function;

  bool is_method() const { return type[0] == '('; }
};

/// A type that recipes see. as: the name of a value of this type in examples and documents.
struct TypeDef {
  const char* name;
  const char* as;
  const char* doc;
  std::span<const Member> members;
};

/// Adds the type to core.table "types" of this process, a list from which `moebench doc` and the
/// type stubs are made, unless an earlier Lua state has added a type of this name. Throws
/// InternalError with the name of a type or member that lacks a doc, a type or a function.
void declare_type(const TypeDef& type);
/// Pushes a list of the declared types, each { name, as, doc, members = { { name, type, doc } } }.
void push_types(lua_State* L);

/// An __index function: throws UserError for an unknown name, with the valid names. Upvalues: the
/// type's name, a table of its methods, a table of the functions that push its fields.
int unknown_member(lua_State* L);

/// Makes the metatable of a type. Pops two tables: the type's methods, and the functions that push
/// its fields. destroy: the __gc function, may be null. Recipes cannot access the metatable
/// (__metatable is false). Assigning to a value, and reading a name that the type does not have,
/// are UserErrors.
void make_type(lua_State* L, const char* type, lua_CFunction destroy);
/// Pushes the two tables that make_type() pops, made from `members`; "()" and "#" are in neither.
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
  declare_type(type);
  push_members(L, type.members);
  make_type(L, type.name, destroyer<T>());
  for (const Member& m : type.members) {
    if (m.name == std::string_view("()")) set_metamethod(L, type.name, "__call", m.function);
    if (m.name == std::string_view("#")) set_metamethod(L, type.name, "__len", m.function);
  }
}

/// A type whose values only the Lua library uses; the library documents the objects that it makes
/// from them.
template <class T>
void new_inner_type(lua_State* L, const char* type, std::initializer_list<luaL_Reg> methods = {}) {
  lua_newtable(L);
  set_functions(L, methods);
  lua_newtable(L);
  make_type(L, type, destroyer<T>());
}

}  // namespace moe::lua
