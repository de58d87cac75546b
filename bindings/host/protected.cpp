#include "bindings/host/protected.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "bindings/host/host.h"
#include "engine/base/errors.h"
#include "engine/base/utf8.h"

namespace moe::lua {
namespace {

// Bytes of stack reserved for code without this check: planning, kernels, and making the error.
constexpr size_t kReserve = size_t{512} << 10;

// Returns the lowest address that the stack may reach in calls of Lua on this thread.
uintptr_t lowest_address() {
  pthread_attr_t attributes;
  void* lowest = nullptr;
  size_t size = 0;
  MOE_CHECK(pthread_getattr_np(pthread_self(), &attributes) == 0,
            "pthread_getattr_np must return the bounds of this thread's stack, but it failed");
  pthread_attr_getstack(&attributes, &lowest, &size);
  pthread_attr_destroy(&attributes);
  return reinterpret_cast<uintptr_t>(lowest) + std::min(kReserve, size / 2);
}

/// A check against overflow of the C stack by nested calls. Lua's own limit covers only Lua's
/// stack. A C function that calls Lua again (gsub, sort, the start of a coroutine, each function of
/// ours) uses the thread's C stack, and the process crashes when that is exhausted. So each such
/// function first checks that enough is left: ours on entry, Lua's by scripts/moe/base/nesting.lua.
/// Throws UserError if this thread's stack has less space left than the engine may need until the
/// next check. The first call on a thread reads the stack's bounds; later calls take nanoseconds.
void check_stack() {
  thread_local const uintptr_t lowest = lowest_address();
  // The frame's address is used, and not a variable's: sanitizers keep variables elsewhere.
  if (reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) > lowest) return;
  throw UserError(
      "C stack overflow: calls are nested too deep through functions that call back, such as "
      "string.gsub, table.sort, coroutines and those of moe");
}

constexpr const char* kErrorType = "moe.error";
constexpr const char* kKinds = "moe.error_kinds";  // weak table: error table -> its kind

int error_to_string(lua_State* L) {
  lua_getfield(L, 1, "message");
  return 1;
}

void set_text(lua_State* L, const char* key, const std::string& text) {
  push_text(L, text);
  lua_setfield(L, -2, key);
}

std::string field_text(lua_State* L, int table, const char* key) {
  lua_pushstring(L, key);
  lua_rawget(L, table);
  std::string text = lua_isstring(L, -1) ? lua_tostring(L, -1) : "";
  lua_pop(L, 1);
  return text;
}

// Pushes the table kKinds; makes it if there is none.
void push_kinds(lua_State* L) {
  lua_getfield(L, LUA_REGISTRYINDEX, kKinds);
  if (lua_istable(L, -1)) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  set_text(L, "__mode", "k");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, kKinds);
}

// Returns the traceback without the frames of the Lua library and of this program's C++ code.
std::string recipe_traceback(lua_State* L, int level) {
  luaL_traceback(L, L, nullptr, level);
  std::istringstream all(lua_tostring(L, -1));
  lua_pop(L, 1);
  const std::string library = Host::of(L).options().scripts_dir + "/";
  std::string kept;
  for (std::string line; std::getline(all, line);) {
    if (line.find(library) != std::string::npos || line.find("[C]: at 0x") != std::string::npos) {
      continue;
    }
    kept += (kept.empty() ? "" : "\n") + line;
  }
  return kept;
}

// Message handler: adds the traceback to an error that is not a table, while the stack exists.
int with_traceback(lua_State* L) {
  if (lua_istable(L, 1)) return 1;
  const char* message = lua_tostring(L, 1);
  const std::string text =
      message ? message : std::string("error value of type ") + luaL_typename(L, 1);
  push_failure(L, {"lua", text, recipe_traceback(L, 1)});
  return 1;
}

// Calls the function; returns the number of its results, or -1 and its exception as `failure`. A
// UserError gets the kind "user" and the recipe's line if `position`, else neither. The catch
// blocks call no function of Lua: a Lua error (out of memory) must not leave a catch block.
int results_of(lua_State* L, lua_CFunction function, bool position, Failure& failure) {
  try {
    check_stack();
    return function(L);
  } catch (const LuaError& e) {
    failure = e.failure();
  } catch (const UserError& e) {
    failure = {position ? "user" : "", e.what(), ""};
    if (position) failure.message = recipe_position(L) + failure.message;
  } catch (const RunError& e) {
    failure = {"run", e.what(), ""};
  } catch (const std::exception& e) {
    failure = foreign_failure(e);
    if (failure.kind == "run") failure.message = recipe_position(L) + failure.message;
  }
  return -1;
}

int run_protected(lua_State* L, lua_CFunction function, bool position) {
  {
    Failure failure;
    const int results = results_of(L, function, position, failure);
    if (results >= 0) return results;
    if (failure.kind.empty()) {
      push_text(L, failure.message);
    } else {
      push_failure(L, failure);
    }
  }
  return lua_error(L);
}

}  // namespace

Failure foreign_failure(const std::exception& error) {
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
                      dynamic_cast<const std::length_error*>(&error) != nullptr;
  if (memory) return {"run", "this call needs more memory than is available", ""};
  // Exceptions of libraries: a thread that cannot be started, a library that cannot be opened.
  const bool machine = dynamic_cast<const std::runtime_error*>(&error) != nullptr;
  if (machine) return {"run", error.what(), ""};
  return {"internal", error.what(), ""};
}

void push_failure(lua_State* L, const Failure& failure) {
  lua_createtable(L, 0, 3);
  set_text(L, "kind", failure.kind);
  set_text(L, "message", failure.message);
  if (!failure.traceback.empty()) set_text(L, "traceback", failure.traceback);
  if (luaL_newmetatable(L, kErrorType) != 0) {
    lua_pushcfunction(L, error_to_string);
    lua_setfield(L, -2, "__tostring");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
  }
  lua_setmetatable(L, -2);
  push_kinds(L);
  lua_pushvalue(L, -2);
  push_text(L, failure.kind);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

std::string failure_kind(lua_State* L, int index) {
  lua_pushvalue(L, index);
  push_kinds(L);
  lua_insert(L, -2);
  lua_rawget(L, -2);
  const std::string kind = lua_isstring(L, -1) ? lua_tostring(L, -1) : "";
  lua_pop(L, 2);
  return kind;
}

Failure pop_failure(lua_State* L) {
  Failure failure;
  const int top = lua_gettop(L);
  if (lua_istable(L, top)) {
    failure = {failure_kind(L, top), field_text(L, top, "message"),
               field_text(L, top, "traceback")};
    if (failure.kind.empty()) failure.kind = "lua";
    if (failure.message.empty()) failure.message = "an error without a message";
  } else {
    const char* text = lua_tostring(L, top);
    failure = {"lua", text ? text : "an error value that is not a string", ""};
  }
  failure.message = shortened(std::move(failure.message));
  lua_settop(L, top - 1);
  return failure;
}

bool try_call(lua_State* L, int num_args, int num_results, Failure& failure) {
  const int handler = lua_gettop(L) - num_args;
  lua_pushcfunction(L, with_traceback);
  lua_insert(L, handler);
  const int status = lua_pcall(L, num_args, num_results, handler);
  if (status != 0) {
    failure = pop_failure(L);
    if (status == LUA_ERRMEM) failure = Host::of(L).limits().out_of_memory();
  }
  lua_remove(L, handler);
  return status == 0;
}

bool try_resume(lua_State* coroutine, int num_args, Failure& failure) {
  const int status = lua_resume(coroutine, num_args);
  if (status == 0) return true;
  if (status == LUA_YIELD) {
    failure = {"user", "coroutine.yield was called outside of the recipe's coroutines", ""};
    return false;
  }
  failure = pop_failure(coroutine);
  if (status == LUA_ERRMEM) failure = Host::of(coroutine).limits().out_of_memory();
  if (status == LUA_ERRMEM || failure.message == "stack overflow") {
    failure.message = recipe_position(coroutine) + failure.message;
  }
  if (failure.kind == "lua") {
    // If a Lua function is on top, its line is no longer known, but the message already has it.
    lua_Debug top;
    const bool has_line = lua_getstack(coroutine, 0, &top) == 0 ||
                          lua_getinfo(coroutine, "l", &top) == 0 || top.currentline > 0;
    failure.traceback = recipe_traceback(coroutine, has_line ? 0 : 1);
  }
  return false;
}

void call(lua_State* L, int num_args, int num_results) {
  Failure failure;
  if (try_call(L, num_args, num_results, failure)) return;
  if (failure.kind == "run") throw RunError(failure.message);
  if (failure.kind == "internal") throw InternalError(failure.message);
  throw LuaError(std::move(failure));
}

std::string recipe_position(lua_State* L) {
  const std::optional<Position> position = Host::of(L).recipe_position(L);
  return position ? fmt::format("{}:{}: ", position->source, position->line) : "";
}

std::string function_position(lua_State* L) {
  lua_Debug function;
  lua_pushvalue(L, -1);
  lua_getinfo(L, ">S", &function);
  return fmt::format("{}:{}: ", function.source + 1, function.linedefined);
}

int run_core_function(lua_State* L, lua_CFunction function) {
  return run_protected(L, function, false);
}

int run_method(lua_State* L, lua_CFunction function) {
  return run_protected(L, function, true);
}

}  // namespace moe::lua
