// Converts between Lua values and JSON values. Numbers are doubles in Lua: a whole number below
// 2^53 becomes an integer in JSON; NaN and infinities, which JSON does not have, become null. A
// table becomes an array if its keys are 1..n with n > 0 or if core.array() marked it, else an
// object with text keys. Structs with a table of fields are converted in field_json.h, not here.
#pragma once

#include <lua.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/units.h"

namespace moe::lua {

/// Converts the Lua value at `index`. Throws UserError naming the path of a value that JSON cannot
/// represent: a mixed or sparse table, tables nested deeper than 64, a key or text that is not
/// UTF-8, a function or userdata. With keep_functions, functions and userdata become null instead
/// (for specifications that contain policies as well as plain values).
nlohmann::json to_json(lua_State* L, int index, bool keep_functions = false);
/// Pushes the value as Lua value. null becomes core.null (a light userdata); tables made of arrays
/// are marked as arrays.
void push_json(lua_State* L, const nlohmann::json& value);

/// Returns the text at `index`, which may contain NULs; raises a Lua error if it is not a text.
std::string text_argument(lua_State* L, int index);
/// The same for a text that results will have. Throws UserError if it is not UTF-8.
std::string utf8_argument(lua_State* L, int index);

/// Marks the table at `index` as an array.
void mark_array(lua_State* L, int index);
/// Pushes core.null, a light userdata with a null address.
inline void push_null(lua_State* L) {
  lua_pushlightuserdata(L, nullptr);
}

/// Returns JSON text with sorted keys. A number is written as the shortest decimal text that reads
/// back as the same double. indent: spaces per level, < 0 means one line. Throws UserError unless
/// all strings are UTF-8.
std::string json_text(const nlohmann::json& value, int indent);
/// Parses JSON text. Throws UserError that begins with `what` and names the first wrong byte.
nlohmann::json parse_json(const std::string& text, const std::string& what = "json");

/// Reads fields of a JSON object; `path` names the object in errors. The functions throw UserError
/// naming the field if it is missing or of another type ("plan.model.layers: give a whole number");
/// those with a parameter `default_value` return it if the field is missing or null.
class Fields {
 public:
  Fields(const nlohmann::json& value, std::string path);
  bool has(const char* key) const;
  int64_t integer(const char* key) const;
  int64_t integer(const char* key, int64_t default_value) const {
    return has(key) ? integer(key) : default_value;
  }
  /// Throws UserError also for NaN and infinities.
  double number(const char* key) const;
  double number(const char* key, double default_value) const {
    return has(key) ? number(key) : default_value;
  }
  /// A time that is given as a number of units of unit_ns nanoseconds; throws UserError unless it
  /// is from 0 to kLongestNs.
  Nanoseconds time(const char* key, double unit_ns) const;
  Nanoseconds time(const char* key, double unit_ns, Nanoseconds default_value) const {
    return has(key) ? time(key, unit_ns) : default_value;
  }
  std::string text(const char* key) const;
  std::string text(const char* key, const std::string& default_value) const {
    return has(key) ? text(key) : default_value;
  }
  bool flag(const char* key, bool default_value) const;
  Fields at(const char* key) const;
  const nlohmann::json& value() const { return *value_; }

 private:
  const nlohmann::json& get(const char* key) const;
  [[noreturn]] void fail(const char* key, const char* expected) const;
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace moe::lua
