// Lua values <-> JSON values. Numbers are doubles in Lua: a whole number below 2^53 is an integer
// in JSON, NaN and infinities are null (JSON has neither). A table is an array when its keys are
// 1..n with n > 0 or when core.array() marked it, else an object with text keys.
#pragma once

#include <lua.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/units.h"

namespace moe::lua {

/// keep_functions: functions and userdata become null instead of a UserError (for specifications
/// that carry policies beside plain values). Throws UserError naming the path of what JSON cannot
/// hold: mixed or sparse tables, tables deeper than 64, keys or texts that are not UTF-8.
nlohmann::json to_json(lua_State* L, int index, bool keep_functions = false);
/// null becomes core.null (a light userdata), arrays are marked as such.
void push_json(lua_State* L, const nlohmann::json& value);

/// The text at `index`, also with NULs in it; a Lua error where there is none.
std::string text_argument(lua_State* L, int index);

/// Marks the table at `index` as an array.
void mark_array(lua_State* L, int index);
/// core.null: a light userdata without an address.
inline void push_null(lua_State* L) {
  lua_pushlightuserdata(L, nullptr);
}

/// Shortest decimal texts that read back as the same double; sorted keys; indent < 0: one line.
std::string json_text(const nlohmann::json& value, int indent);
/// Throws UserError with the byte where the text is wrong.
nlohmann::json parse_json(const std::string& text);

/// Reads fields of a JSON object with errors that name them: "core.plan: model.layers: give a
/// number".
class Fields {
 public:
  Fields(const nlohmann::json& value, std::string path);
  bool has(const char* key) const;
  int64_t integer(const char* key) const;
  int64_t integer(const char* key, int64_t default_value) const;
  /// Finite.
  double number(const char* key) const;
  double number(const char* key, double default_value) const;
  /// A number of units of so many ns, of at least 0 and at most kLongestNs.
  Nanoseconds time(const char* key, double unit_ns) const;
  Nanoseconds time(const char* key, double unit_ns, Nanoseconds default_value) const;
  std::string text(const char* key) const;
  std::string text(const char* key, const std::string& default_value) const;
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
