#include "bindings/host/sandbox.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "bindings/host/convert.h"
#include "bindings/host/host.h"
#include "bindings/host/library_code.h"
#include "bindings/host/protected.h"
#include "engine/base/files.h"
#include "engine/base/names.h"
#include "engine/base/utf8.h"

namespace moe::lua {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGlobals = "moe.recipe_globals";
constexpr const char* kModules = "moe.recipe_modules";

constexpr std::array kPlainGlobals = {
    "assert",   "error",    "getmetatable", "ipairs",   "next",   "pairs",   "pcall",
    "print",    "rawequal", "rawget",       "rawpairs", "rawset", "select",  "setmetatable",
    "tonumber", "tostring", "type",         "unpack",   "xpcall", "_VERSION"};
constexpr std::array kLibraries = {"string", "table", "math", "bit", "coroutine"};
constexpr std::array kKeptFromRecipes = {
    "collectgarbage", "debug",  "dofile",   "ffi", "getfenv", "io",      "jit",   "loadfile",
    "loadstring",     "module", "newproxy", "os",  "package", "setfenv", "gcinfo"};

// A key of a table. pairs() iterates over numbers, then strings, each ascending; false, true; then
// other keys in the table's own order.
struct Key {
  const char* text;  // of a string
  double number;     // or the length of a string, or 1 for true
  int rank;
  int place;  // in the list of the table's keys

  bool operator<(const Key& other) const {
    if (rank != other.rank) return rank < other.rank;
    if (text != nullptr) return view() < other.view();
    return number != other.number ? number < other.number : place < other.place;
  }
  std::string_view view() const { return {text, static_cast<size_t>(number)}; }
};

Key key_at(lua_State* L, int index, int place) {
  size_t size = 0;
  switch (lua_type(L, index)) {
    case LUA_TNUMBER:
      return {nullptr, lua_tonumber(L, index), 0, place};
    case LUA_TSTRING: {
      const char* const text = lua_tolstring(L, index, &size);
      return {text, static_cast<double>(size), 1, place};
    }
    case LUA_TBOOLEAN:
      return {nullptr, static_cast<double>(lua_toboolean(L, index)), 2, place};
    default:
      return {nullptr, 0, 3, place};
  }
}

int next_sorted(lua_State* L) {
  const int list = lua_upvalueindex(2), sorted = lua_upvalueindex(3);
  auto i = static_cast<size_t>(lua_tointeger(L, lua_upvalueindex(4)));
  const auto* keys = static_cast<const Key*>(lua_touserdata(L, sorted));
  for (const size_t n = lua_objlen(L, sorted) / sizeof(Key); i < n;) {
    lua_rawgeti(L, list, keys[i++].place);
    lua_pushvalue(L, -1);
    lua_rawget(L, lua_upvalueindex(1));
    if (!lua_isnil(L, -1)) {
      lua_pushinteger(L, static_cast<lua_Integer>(i));
      lua_replace(L, lua_upvalueindex(4));
      return 2;
    }
    lua_pop(L, 2);  // the key was removed during the loop
  }
  return 0;
}

int sorted_pairs(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  int n = 0;
  for (lua_pushnil(L); lua_next(L, 1) != 0; lua_pop(L, 1)) ++n;
  lua_createtable(L, n, 0);
  auto* const keys = static_cast<Key*>(lua_newuserdata(L, sizeof(Key) * static_cast<size_t>(n)));
  int i = 0;
  for (lua_pushnil(L); lua_next(L, 1) != 0;) {
    lua_pop(L, 1);
    keys[i] = key_at(L, -1, i + 1);
    lua_pushvalue(L, -1);
    lua_rawseti(L, 2, ++i);
  }
  std::sort(keys, keys + n);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, next_sorted, 4);
  return 1;
}

// string.rep as in Lua, except that a result above a quarter of the memory cap is an error, which
// names the line of the call.
int string_rep(lua_State* L) {
  size_t length = 0;
  luaL_checklstring(L, 1, &length);
  const lua_Number times = luaL_checknumber(L, 2);
  const size_t cap = Host::of(L).limits().memory_cap();
  if (cap != 0 && times > 0 && static_cast<double>(length) * times > static_cast<double>(cap / 4)) {
    return luaL_error(L, "string.rep: the result has more than %d MiB",
                      static_cast<int>(cap >> 22));
  }
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, 1);
  return 1;
}

// print as in Lua, except that control characters are made harmless for a terminal. It counts as an
// effect of the recipe (note_effect), and it erases the status line first.
int print_line(lua_State* L) {
  Host& host = Host::of(L);
  if (host.is_silent()) return 0;
  host.note_effect();
  host.note_print();
  host.progress().erase();
  std::string line;
  for (int i = 1, n = lua_gettop(L); i <= n; ++i) {
    lua_getglobal(L, "tostring");
    lua_pushvalue(L, i);
    lua_call(L, 1, 1);
    size_t size = 0;
    const char* text = lua_tolstring(L, -1, &size);
    if (text == nullptr)
      throw UserError(
          "print: the metamethod __tostring of a value did not return a string; return one");
    if (i > 1) line += '\t';
    line.append(text, size);
    lua_pop(L, 1);
  }
  if (isatty(STDOUT_FILENO) != 0) line = printable(line);
  line += '\n';
  host.print(line);
  return 0;
}

int undefined_global(lua_State* L) {
  const std::string name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?";
  const auto is_name = [&](const char* kept) { return name == kept; };
  if (std::any_of(kKeptFromRecipes.begin(), kKeptFromRecipes.end(), is_name)) {
    throw user_error("'{}' is not available to recipes; --trust allows it", name);
  }
  if (name == "moe") {
    throw user_error("undefined global 'moe': begin the file with local moe = require \"moe\"");
  }
  std::vector<std::string> names;
  for (lua_pushnil(L); lua_next(L, 1) != 0; lua_pop(L, 1)) {
    if (lua_type(L, -2) == LUA_TSTRING) names.emplace_back(lua_tostring(L, -2));
  }
  std::sort(names.begin(), names.end());
  const std::string near = nearest_name(name, names);
  throw user_error("undefined global '{}'{}", name,
                   near.empty() ? "" : fmt::format(". Did you mean '{}'?", near));
}

// Returns the name under which a chunk of the recipe is loaded. The name decides which code is the
// library's, which signals do not end; so a chunk of the recipe whose name is one of the library's
// gets one slash more.
std::string own_name(lua_State* L, std::string name) {
  const bool taken = name.starts_with("@" + Host::of(L).options().scripts_dir + "/");
  return taken ? name.insert(1, "/") : name;
}

int load_text(lua_State* L) {
  size_t size = 0;
  const char* text = luaL_checklstring(L, 1, &size);
  const std::string name = own_name(L, luaL_optstring(L, 2, "=(load)"));
  if (luaL_loadbufferx(L, text, size, name.c_str(), "t") != 0) {
    lua_pushnil(L);
    lua_insert(L, -2);
    return 2;
  }
  if (lua_istable(L, 4)) {
    lua_pushvalue(L, 4);
  } else {
    lua_getfield(L, LUA_REGISTRYINDEX, kGlobals);
  }
  lua_setfenv(L, -2);
  return 1;
}

struct Module {
  std::string name;  // path of the chunk, beginning like the recipe's path as the user typed it
  std::string text;
};

// Returns the module of this name in the recipe's folder. If there is none, throws UserError, or
// with --trust returns nothing.
std::optional<Module> module_beside(const Host& host, const std::string& name) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  };
  const bool well_formed = !name.empty() && name.find("..") == std::string::npos &&
                           name[0] != '.' && std::all_of(name.begin(), name.end(), allowed);
  std::string relative = name;
  std::replace(relative.begin(), relative.end(), '.', '/');
  const fs::path folder = fs::path(host.options().recipe).parent_path();
  const fs::path file = folder / (relative + ".lua");
  std::error_code error;
  if (!well_formed || !fs::is_regular_file(file, error)) {
    if (host.options().trust) return std::nullopt;
    throw user_error(
        "require '{}': there is no such module; a recipe may require \"moe\" and Lua files in its "
        "own folder",
        name);
  }
  return Module{file.string(), host.files().read(fs::absolute(file).string())};
}

int require_module(lua_State* L) {
  const std::string name = text_argument(L, 1);
  check_path(name);
  Host& host = Host::of(L);
  if (name == "moe") {
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_getfield(L, -1, "moe");
    return 1;
  }
  lua_getfield(L, LUA_REGISTRYINDEX, kModules);
  const int modules = lua_gettop(L);
  lua_getfield(L, modules, name.c_str());
  if (!lua_isnil(L, -1)) {
    if (lua_isboolean(L, -1) && !lua_toboolean(L, -1)) {
      throw user_error(
          "require '{}': the module is being loaded already; modules must not require each other "
          "in a circle",
          name);
    }
    return 1;
  }
  const std::optional<Module> module = module_beside(host, name);
  if (!module) {
    lua_getglobal(L, "require");
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    return 1;
  }
  lua_pushboolean(L, 0);  // false marks a module that is being loaded
  lua_setfield(L, modules, name.c_str());
  push_chunk(L, module->text, module->name);
  lua_call(L, 0, 1);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_pushboolean(L, 1);
  }
  lua_pushvalue(L, -1);
  lua_setfield(L, modules, name.c_str());
  return 1;
}

void open(lua_State* L, const char* name, lua_CFunction library) {
  lua_pushcfunction(L, library);
  lua_pushstring(L, name);
  lua_call(L, 1, 0);
}

// Sets the fields with these names in the table on top of the stack to nil.
void remove_fields(lua_State* L, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    lua_pushnil(L);
    lua_setfield(L, -2, name);
  }
}

// Replaces the global functions print and pairs, for the library as well as for recipes; Lua's own
// pairs becomes rawpairs.
void replace_globals(lua_State* L) {
  lua_pushcfunction(L, method<print_line>);
  lua_setglobal(L, "print");
  lua_getglobal(L, "pairs");
  lua_setglobal(L, "rawpairs");
  lua_pushcfunction(L, sorted_pairs);
  lua_setglobal(L, "pairs");
}

// Changes Lua's libraries, for the library as well as for recipes (not with --trust): no random
// numbers, no string.dump, string.rep with a limit, and strings whose metatable is hidden.
void tame_libraries(lua_State* L) {
  lua_getglobal(L, "math");
  remove_fields(L, {"random", "randomseed"});
  lua_getglobal(L, "string");
  remove_fields(L, {"dump"});
  lua_getfield(L, -1, "rep");
  lua_pushcclosure(L, string_rep, 1);
  lua_setfield(L, -2, "rep");
  lua_pushliteral(L, "");
  lua_getmetatable(L, -1);
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");  // getmetatable("") returns false
  lua_settop(L, 0);
}

int append_code(lua_State*, const void* data, size_t size, void* code) {
  static_cast<std::string*>(code)->append(static_cast<const char*>(data), size);
  return 0;
}

std::string compiled(lua_State* L, const std::string& text, const std::string& file) {
  std::string code;
  if (luaL_loadbufferx(L, text.data(), text.size(), ("@" + file).c_str(), "t") != 0) {
    throw LuaError(pop_failure(L));
  }
  lua_dump(L, append_code, &code);
  lua_pop(L, 1);
  return code;
}

// Returns the bytecode of the build for a file of the library, with the file's path in place of its
// name, or "" if the file has another text now.
std::string bytecode_of_build(const std::string& scripts, const std::string& file,
                              const std::string& text) {
  const std::string name = file.substr(scripts.size() + 1);
  const auto found =
      std::find_if(kLibraryFiles.begin(), kLibraryFiles.end(), [&](const LibraryFile& one) {
        return one.name == name && one.hash == std::hash<std::string>()(text);
      });
  if (found == kLibraryFiles.end()) return "";
  // A signature of four bytes, a byte of flags, and the chunk's name behind its length in ULEB128.
  constexpr size_t kHead = 5;
  std::string code(found->code.substr(0, kHead));
  size_t rest = file.size() + 1;
  for (; rest >= 0x80; rest >>= 7) code += static_cast<char>(rest | 0x80);
  code += static_cast<char>(rest);
  return code.append("@" + file).append(found->code.substr(kHead + 1 + 1 + name.size()));
}

// Pushes the compiled Lua file of the library. Each rank has a Lua state that loads the library, so
// a process keeps the bytecode of its files: that of the build, or its own of one that has changed.
void push_library_file(lua_State* L, const std::string& file) {
  static std::mutex mutex;
  static std::map<std::string, std::string> bytecode;
  static bool of_build = true;  // whether this LuaJIT compiles as that of the build did
  const std::lock_guard lock(mutex);
  std::string& code = bytecode[file];
  if (code.empty()) {
    const std::string text = read_file(file);
    if (of_build) code = bytecode_of_build(Host::of(L).options().scripts_dir, file, text);
    const bool probe = bytecode.size() == 1;
    if (probe || code.empty()) {
      const std::string own = compiled(L, text, file);
      if (probe) of_build = own == code;
      code = own;
    }
  }
  if (luaL_loadbufferx(L, code.data(), code.size(), file.c_str(), "b") != 0) {
    throw LuaError(pop_failure(L));
  }
}

// The loader of the library's modules, as package.loaders has it: (name of a module) -> its chunk,
// or nothing.
int load_library_module(lua_State* L) {
  std::string path = text_argument(L, 1);
  std::replace(path.begin(), path.end(), '.', '/');
  const std::string base = Host::of(L).options().scripts_dir + "/" + path;
  for (const std::string& file : {base + ".lua", base + "/init.lua"}) {
    if (!path.starts_with("moe") || access(file.c_str(), R_OK) != 0) continue;
    push_library_file(L, file);
    return 1;
  }
  return 0;
}

// Makes load_library_module the second loader, after package.preload.
void add_loader(lua_State* L) {
  lua_getfield(L, -1, "loaders");
  for (int i = static_cast<int>(lua_objlen(L, -1)); i >= 2; --i) {
    lua_rawgeti(L, -1, i);
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushcfunction(L, method<load_library_module>);
  lua_rawseti(L, -2, 2);
  lua_pop(L, 1);
}

// The function `check` of nesting.lua. It has an empty body, since method<> checks the C stack.
int look_at_stack(lua_State*) {
  return 0;
}

// Makes those functions of Lua's libraries that call Lua functions check the C stack too.
void hold_to_stack(lua_State* L, const std::string& scripts) {
  push_library_file(L, scripts + "/moe/base/nesting.lua");
  lua_pushcfunction(L, method<look_at_stack>);
  call(L, 1, 0);
}

void copy_table(lua_State* L, const char* name, int to) {
  lua_newtable(L);
  lua_getglobal(L, name);
  for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1)) {
    lua_pushvalue(L, -2);
    lua_pushvalue(L, -2);
    lua_rawset(L, -6);
  }
  lua_pop(L, 1);
  lua_setfield(L, to, name);
}

void make_recipe_globals(lua_State* L, bool trust) {
  lua_newtable(L);
  const int globals = lua_gettop(L);
  if (trust) {
    lua_pushvalue(L, LUA_GLOBALSINDEX);
    for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1)) {
      lua_pushvalue(L, -2);
      lua_pushvalue(L, -2);
      lua_rawset(L, globals);
    }
    lua_settop(L, globals);
  } else {
    for (const char* name : kPlainGlobals) {
      lua_getglobal(L, name);
      lua_setfield(L, globals, name);
    }
    for (const char* name : kLibraries) copy_table(L, name, globals);
    lua_newtable(L);
    lua_getglobal(L, "debug");
    lua_getfield(L, -1, "traceback");
    lua_setfield(L, -3, "traceback");
    lua_pop(L, 1);
    lua_setfield(L, globals, "debug");
    lua_pushcfunction(L, method<load_text>);
    lua_setfield(L, globals, "load");
  }
  lua_pushcfunction(L, method<require_module>);
  lua_setfield(L, globals, "require");
  lua_pushvalue(L, globals);
  lua_setfield(L, globals, "_G");
  lua_createtable(L, 0, 2);
  lua_pushcfunction(L, method<undefined_global>);
  lua_setfield(L, -2, "__index");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, globals);
  lua_setfield(L, LUA_REGISTRYINDEX, kGlobals);
  lua_newtable(L);
  lua_setfield(L, LUA_REGISTRYINDEX, kModules);
}

// Opening the library jit switches the JIT compiler on. Compiled code of Debian 12's LuaJIT
// (2.1.0-beta3 of 2022-03) crashed in one of ten runs of tests/lua, none of which crashed when
// interpreted; an error in compiled code (a stack overflow) skips the message handler, so its line
// would be lost; and neither a Lua gate on 32,768 tokens nor the library got faster by it.
void switch_jit_off(lua_State* L) {
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
}

}  // namespace

void open_libraries(lua_State* L) {
  const bool trust = Host::of(L).options().trust;
  if (trust) {
    luaL_openlibs(L);
  } else {
    open(L, "", luaopen_base);
    open(L, LUA_LOADLIBNAME, luaopen_package);
    open(L, LUA_TABLIBNAME, luaopen_table);
    open(L, LUA_STRLIBNAME, luaopen_string);
    open(L, LUA_MATHLIBNAME, luaopen_math);
    open(L, LUA_BITLIBNAME, luaopen_bit);
    open(L, LUA_DBLIBNAME, luaopen_debug);
    open(L, LUA_JITLIBNAME, luaopen_jit);
    tame_libraries(L);
  }
  switch_jit_off(L);
  replace_globals(L);
  const std::string scripts = Host::of(L).options().scripts_dir;
  lua_getglobal(L, "package");
  for (const char* path : {"path", "cpath"}) {
    lua_pushliteral(L, "");
    lua_setfield(L, -2, path);
  }
  add_loader(L);
  lua_pop(L, 1);
  hold_to_stack(L, scripts);
  make_recipe_globals(L, trust);
}

void push_chunk(lua_State* L, const std::string& text, const std::string& name) {
  const std::string chunk = own_name(L, "@" + name);
  if (text.starts_with('\033')) {
    throw user_error("{}: the file has bytecode, not Lua; give the Lua file from which it was made",
                     name);
  }
  if (luaL_loadbufferx(L, text.data(), text.size(), chunk.c_str(), "t") != 0) {
    throw LuaError({"user", pop_failure(L).message, ""});
  }
  Host::of(L).add_code(text);
  lua_getfield(L, LUA_REGISTRYINDEX, kGlobals);
  lua_setfenv(L, -2);
}

}  // namespace moe::lua
