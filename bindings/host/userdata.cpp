#include "bindings/host/userdata.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "bindings/host/convert.h"
#include "engine/base/names.h"

namespace moe::lua {
namespace {

using nlohmann::json;

std::string key_text(lua_State* L, int index) {
  return lua_type(L, index) == LUA_TSTRING ? lua_tostring(L, index) : luaL_typename(L, index);
}

std::string with_article(const std::string& noun) {
  if (noun.back() == 's') return noun;
  return (std::string_view("aeiou").find(noun[0]) == std::string_view::npos ? "a " : "an ") + noun;
}

std::mutex types_mutex;

json& types() {
  static json list = json::array();
  return list;
}

// __newindex of every type. Upvalue: the type's name.
int refuse_assignment(lua_State* L) {
  throw user_error("{} cannot be changed by assigning to '{}'; call one of its methods instead",
                   with_article(lua_tostring(L, lua_upvalueindex(1))), key_text(L, 2));
}

// __tostring of every type: no address, which would differ from run to run. Upvalue: its name.
int type_text(lua_State* L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  return 1;
}

// __index of every type. Its upvalues are those of unknown_member.
int read_member(lua_State* L) {
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(3));
  if (const lua_CFunction field = lua_tocfunction(L, -1)) {
    lua_settop(L, 2);
    return field(L);
  }
  lua_pushvalue(L, 2);
  lua_rawget(L, lua_upvalueindex(2));
  return lua_isnil(L, -1) ? unknown_member(L) : 1;
}

}  // namespace

void refuse_argument(lua_State* L, int index, const char* type) {
  const std::string given =
      lua_isnone(L, index) ? "nothing" : with_article(luaL_typename(L, index));
  // Argument 1 of a method is the value before the ':'.
  throw user_error("{}: {} is given, but {} is needed{}",
                   index == 1 ? "the value before the ':'" : fmt::format("argument {}", index - 1),
                   given, with_article(type), index == 1 ? " (is a ':' missing?)" : "");
}

int64_t check_index(lua_State* L, int index, int64_t limit, const char* what) {
  const bool number = lua_type(L, index) == LUA_TNUMBER;
  const double value = number ? lua_tonumber(L, index) : NAN;
  if (!(value >= 1 && value <= static_cast<double>(limit)) || value != std::floor(value)) {
    throw user_error("{} {} is not allowed; {}give 1 to {}", what,
                     number ? fmt::format("{:.14g}", value) : luaL_typename(L, index),
                     value == 0 ? "Lua counts from 1: " : "", limit);
  }
  return static_cast<int64_t>(value) - 1;
}

void check_keys(lua_State* L, int table, std::string_view what,
                const std::vector<std::string>& names) {
  luaL_checktype(L, table, LUA_TTABLE);
  for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1)) {
    const std::string key = key_text(L, -2);
    const bool known =
        lua_type(L, -2) == LUA_TSTRING && std::find(names.begin(), names.end(), key) != names.end();
    if (!known) throw UserError(fmt::format("{}: {}", what, unknown_name("key", key, names)));
  }
}

void push_types(lua_State* L) {
  const std::lock_guard lock(types_mutex);
  push_json(L, types());
}

void declare_type(const TypeDef& type) {
  const std::lock_guard lock(types_mutex);
  const auto is_type = [&](const json& t) { return t["name"] == type.name; };
  if (std::any_of(types().begin(), types().end(), is_type)) return;
  check_rows("types", std::array{type});
  check_rows(fmt::format("members of {}", with_article(type.name)), type.members);
  json members = json::array();
  for (const Member& m : type.members) {
    MOE_CHECK(*m.type != '\0' && m.function != nullptr,
              "member '{}' of {}: its type must not be empty and its function must not be null",
              m.name, with_article(type.name));
    members.push_back({{"name", m.name}, {"type", m.type}, {"doc", m.doc}});
  }
  types().push_back(
      {{"name", type.name}, {"as", type.as}, {"doc", type.doc}, {"members", members}});
}

void push_members(lua_State* L, std::span<const Member> members) {
  lua_newtable(L);
  lua_newtable(L);
  for (const Member& m : members) {
    if (m.name == std::string_view("()") || m.name == std::string_view("#")) continue;
    lua_pushcfunction(L, m.function);
    lua_setfield(L, m.is_method() ? -3 : -2, m.name);
  }
}

int unknown_member(lua_State* L) {
  const std::string type = lua_tostring(L, lua_upvalueindex(1));
  if (lua_type(L, 2) == LUA_TNUMBER) {
    throw user_error(
        "{} cannot be indexed by [{:g}]; if it holds numbers, write x({:g}) in place of x[{:g}]",
        with_article(type), lua_tonumber(L, 2), lua_tonumber(L, 2), lua_tonumber(L, 2));
  }
  std::vector<std::string> names;
  const char* what = "method";
  for (const int table : {lua_upvalueindex(3), lua_upvalueindex(2)}) {
    if (table == lua_upvalueindex(2) && !names.empty()) what = "field";
    for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1)) {
      if (lua_type(L, -2) == LUA_TSTRING) names.push_back(lua_tostring(L, -2));
    }
  }
  throw UserError(unknown_name(fmt::format("{} of {}", what, with_article(type)), key_text(L, 2),
                               std::move(names)));
}

void make_type(lua_State* L, const char* type, lua_CFunction destroy) {
  const int methods = lua_gettop(L) - 1, fields = methods + 1;
  luaL_newmetatable(L, type);
  const auto set = [&](const char* name, lua_CFunction f, int num_tables) {
    lua_pushstring(L, type);
    if (num_tables > 0) lua_pushvalue(L, methods);
    if (num_tables > 0) lua_pushvalue(L, fields);
    lua_pushcclosure(L, f, 1 + num_tables);
    lua_setfield(L, -2, name);
  };
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  if (destroy != nullptr) lua_pushcfunction(L, destroy);
  if (destroy != nullptr) lua_setfield(L, -2, "__gc");
  set("__newindex", method<refuse_assignment>, 0);
  set("__tostring", type_text, 0);
  set("__index", method<read_member>, 2);
  lua_settop(L, methods - 1);
}

}  // namespace moe::lua
