#include "bindings/host/userdata.h"

#include <algorithm>
#include <cmath>

#include "engine/base/names.h"

namespace moe::lua {
namespace {

std::string key_text(lua_State* L, int index) {
  return lua_type(L, index) == LUA_TSTRING ? lua_tostring(L, index) : luaL_typename(L, index);
}

std::string with_article(const std::string& noun) {
  if (noun.back() == 's') return noun;
  return (std::string_view("aeiou").find(noun[0]) == std::string_view::npos ? "a " : "an ") + noun;
}

}  // namespace

void refuse_argument(lua_State* L, int index, const char* type) {
  const std::string given =
      lua_isnone(L, index) ? "nothing" : with_article(luaL_typename(L, index));
  // Argument 1 of a method is the value before the ':'.
  throw user_error("{}: {} is given, but {} is needed{}",
                   index == 1 ? "what the call is for" : fmt::format("argument {}", index - 1),
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

int unknown_member(lua_State* L) {
  const std::string type = lua_tostring(L, lua_upvalueindex(1));
  if (lua_type(L, 2) == LUA_TNUMBER) {
    throw user_error("{} cannot be indexed by [{:g}]; write x({:g}) if it contains numbers",
                     with_article(type), lua_tonumber(L, 2), lua_tonumber(L, 2));
  }
  std::vector<std::string> names;
  const int methods = lua_upvalueindex(2), fields = lua_upvalueindex(3);
  for (lua_pushnil(L); lua_next(L, methods) != 0; lua_pop(L, 1)) {
    if (lua_type(L, -2) == LUA_TSTRING) names.push_back(lua_tostring(L, -2));
  }
  const size_t num_fields = lua_objlen(L, fields);
  for (size_t i = 1; i <= num_fields; ++i) {
    lua_rawgeti(L, fields, static_cast<int>(i));
    names.push_back(lua_tostring(L, -1));
    lua_pop(L, 1);
  }
  const char* what = num_fields == 0 ? "method" : "field";
  throw UserError(unknown_name(fmt::format("{} of {}", what, with_article(type)), key_text(L, 2),
                               std::move(names)));
}

int refuse_assignment(lua_State* L) {
  throw user_error("{} cannot be assigned to ('{}'); use its methods to change it",
                   with_article(lua_tostring(L, lua_upvalueindex(1))), key_text(L, 2));
}

}  // namespace moe::lua
