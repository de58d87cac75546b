#include "bindings/host/convert.h"

#include <cmath>
#include <set>
#include <vector>

#include "bindings/host/protected.h"
#include "engine/base/errors.h"
#include "engine/base/files.h"
#include "engine/base/limits.h"
#include "engine/base/utf8.h"

namespace moe::lua {
namespace {

using nlohmann::json;

constexpr const char* kArrayType = "moe.array";
constexpr int kMaxDepth = 64;
constexpr double kMaxInteger = 9007199254740992.0;  // 2^53

class Reader {
 public:
  Reader(lua_State* L, bool keep_functions) : L_(L), keep_functions_(keep_functions) {}

  json value(int index, int depth) {
    switch (lua_type(L_, index)) {
      case LUA_TNIL:
        return nullptr;
      case LUA_TBOOLEAN:
        return lua_toboolean(L_, index) != 0;
      case LUA_TNUMBER:
        return number(lua_tonumber(L_, index));
      case LUA_TSTRING:
        return text(index);
      case LUA_TTABLE:
        return table(index, depth);
      case LUA_TLIGHTUSERDATA:
        if (lua_touserdata(L_, index) == nullptr) return nullptr;
        break;
      default:
        break;
    }
    if (keep_functions_) return nullptr;
    throw user_error(
        "json: {}a {} cannot be written as JSON; give a table, string, number or boolean", where(),
        luaL_typename(L_, index));
  }

 private:
  static json number(double x) {
    if (x == std::floor(x) && std::abs(x) <= kMaxInteger && !(x == 0 && std::signbit(x))) {
      return static_cast<int64_t>(x);
    }
    return x;
  }

  std::string text(int index) {
    size_t size = 0;
    const char* data = lua_tolstring(L_, index, &size);
    if (const auto at = first_invalid_byte({data, size})) {
      throw user_error("json: {}the string is not UTF-8 from byte {} on; give UTF-8", where(),
                       *at + 1);
    }
    return {data, size};
  }

  json table(int index, int depth) {
    if (depth >= kMaxDepth)
      throw user_error("json: {}tables are nested too deep; at most {} levels are allowed", where(),
                       kMaxDepth);
    luaL_checkstack(L_, 8, "json");
    if (index < 0) index = lua_gettop(L_) + 1 + index;
    const size_t length = lua_objlen(L_, index);
    return length > 0 || is_marked(index) ? array(index, length, depth) : object(index, depth);
  }

  bool is_marked(int index) {
    if (!lua_getmetatable(L_, index)) return false;
    luaL_getmetatable(L_, kArrayType);
    const bool marked = lua_rawequal(L_, -1, -2) != 0;
    lua_pop(L_, 2);
    return marked;
  }

  json array(int index, size_t length, int depth) {
    json result = json::array();
    for (size_t i = 1; i <= length; ++i) {
      lua_rawgeti(L_, index, static_cast<int>(i));
      path_.push_back(fmt::format("[{}]", i));
      result.push_back(value(-1, depth + 1));
      path_.pop_back();
      lua_pop(L_, 1);
    }
    size_t entries = 0;
    for (lua_pushnil(L_); lua_next(L_, index) != 0; lua_pop(L_, 1)) ++entries;
    if (entries != length) {
      throw user_error(
          "json: {}a table has both a list and other keys, or a list with missing entries; give "
          "one kind of key, and lists without nil",
          where());
    }
    return result;
  }

  json object(int index, int depth) {
    json result = json::object();
    for (lua_pushnil(L_); lua_next(L_, index) != 0; lua_pop(L_, 1)) {
      if (lua_type(L_, -2) != LUA_TSTRING) {
        throw user_error("json: {}a key has the type {}; keys must be strings, or 1, 2, 3, ...",
                         where(), luaL_typename(L_, -2));
      }
      std::string key = text(-2);
      path_.push_back("." + key);
      result[key] = value(-1, depth + 1);
      path_.pop_back();
    }
    return result;
  }

  std::string where() const {
    std::string all;
    for (const std::string& step : path_) all += step;
    return all.empty() ? all : all + ": ";
  }

  lua_State* L_;
  bool keep_functions_;
  std::vector<std::string> path_;
};

// Makes a value of a text, and refuses a key that is there twice and what is too deep. (The
// library's parser with a callback looks at all entries of a list again whenever one of them ends.)
class TextReader : public nlohmann::detail::json_sax_dom_parser<json> {
 public:
  TextReader(json& value, const std::string& what) : json_sax_dom_parser(value), what_(what) {}

  bool start_object(std::size_t size) { return open(), json_sax_dom_parser::start_object(size); }
  bool start_array(std::size_t size) { return open(), json_sax_dom_parser::start_array(size); }
  bool end_object() { return open_.pop_back(), json_sax_dom_parser::end_object(); }
  bool end_array() { return open_.pop_back(), json_sax_dom_parser::end_array(); }
  bool key(std::string& name) {
    if (open_.back().insert(name).second) return json_sax_dom_parser::key(name);
    throw user_error("{}: the key {} is there twice in one object; give it once", what_,
                     json(name).dump());
  }

 private:
  void open() {
    if (open_.size() >= size_t{kMaxDepth}) {
      throw user_error("{}: more than {} objects and arrays are in one another", what_, kMaxDepth);
    }
    open_.emplace_back();
  }

  const std::string& what_;
  std::vector<std::set<std::string>> open_;  // the keys of each open object; none of a list
};

}  // namespace

json to_json(lua_State* L, int index, bool keep_functions) {
  return Reader(L, keep_functions).value(index, 0);
}

void push_json(lua_State* L, const json& value) {
  luaL_checkstack(L, 8, "json");
  switch (value.type()) {
    case json::value_t::boolean:
      lua_pushboolean(L, value.get<bool>());
      break;
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
    case json::value_t::number_float:
      lua_pushnumber(L, value.get<double>());
      break;
    case json::value_t::string: {
      const std::string& text = value.get_ref<const std::string&>();
      push_text(L, text);
      break;
    }
    case json::value_t::array:
      lua_createtable(L, static_cast<int>(value.size()), 0);
      for (size_t i = 0; i < value.size(); ++i) {
        push_json(L, value[i]);
        lua_rawseti(L, -2, static_cast<int>(i + 1));
      }
      mark_array(L, -1);
      break;
    case json::value_t::object:
      lua_createtable(L, 0, static_cast<int>(value.size()));
      for (const auto& [key, field] : value.items()) {
        push_text(L, key);
        push_json(L, field);
        lua_rawset(L, -3);
      }
      break;
    default:
      push_null(L);
  }
}

std::string text_argument(lua_State* L, int index) {
  size_t size = 0;
  const char* const text = luaL_checklstring(L, index, &size);
  return {text, size};
}

std::string utf8_argument(lua_State* L, int index) {
  std::string text = text_argument(L, index);
  const auto at = first_invalid_byte(text);
  if (!at) return text;
  throw user_error("{}bad argument #{}: the text is not UTF-8 from byte {} on; give UTF-8 text",
                   recipe_position(L), index, *at + 1);
}

void mark_array(lua_State* L, int index) {
  if (index < 0) index = lua_gettop(L) + 1 + index;
  luaL_newmetatable(L, kArrayType);
  lua_setmetatable(L, index);
}

std::string json_text(const json& value, int indent) {
  try {
    return value.dump(indent);
  } catch (const json::exception&) {
    throw user_error("json: the text is not UTF-8; give UTF-8");
  }
}

json parse_json(const std::string& text, const std::string& what) {
  check_json_size(text, what);
  try {
    json value;
    TextReader reader(value, what);
    json::sax_parse(text, &reader);
    const size_t nul = text.find('\0');  // which the library takes for the end of the text
    if (nul == std::string::npos) return value;
    throw user_error("{}: the text is not JSON at byte {}, which is NUL", what, nul + 1);
  } catch (const json::parse_error& e) {
    throw user_error("{}: the text is not JSON at byte {}", what, e.byte);
  } catch (const json::out_of_range&) {
    throw user_error("{}: a number is out of range; allowed: numbers of 64 bits", what);
  }
}

Fields::Fields(const json& value, std::string path) : value_(&value), path_(std::move(path)) {
  if (!value.is_object()) throw user_error("{}: give a table", path_);
}

bool Fields::has(const char* key) const {
  const auto at = value_->find(key);
  return at != value_->end() && !at->is_null();
}

const json& Fields::get(const char* key) const {
  if (!has(key)) fail(key, "is missing");
  return *value_->find(key);
}

void Fields::fail(const char* key, const char* expected) const {
  throw user_error("{}.{}: {}", path_, key, expected);
}

int64_t Fields::integer(const char* key) const {
  const json& value = get(key);
  if (value.is_number_float() && value == 0.0) return 0;  // of -0
  if (!value.is_number_integer()) fail(key, "give a whole number");
  return value.get<int64_t>();
}

double Fields::number(const char* key) const {
  const json& value = get(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) fail(key, "give a finite number");
  return value.get<double>();
}

Nanoseconds Fields::time(const char* key, double unit_ns) const {
  return checked_ns(number(key) * unit_ns, [&] { return path_ + "." + key; });
}

std::string Fields::text(const char* key) const {
  const json& value = get(key);
  if (!value.is_string()) fail(key, "give a string");
  return value.get<std::string>();
}

bool Fields::flag(const char* key, bool default_value) const {
  if (!has(key)) return default_value;
  const json& value = get(key);
  if (!value.is_boolean()) fail(key, "give true or false");
  return value.get<bool>();
}

Fields Fields::at(const char* key) const {
  return {get(key), path_ + "." + key};
}

}  // namespace moe::lua
