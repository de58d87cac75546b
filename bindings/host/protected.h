// The one border between C++ exceptions and Lua errors. Every C++ function that Lua calls goes
// through core_function<> or method<>; every call from C++ into Lua goes through call(). Lua errors
// and C++ exceptions unwind through each other's frames here (LuaJIT on x86-64), so destructors
// run; no frame in between is noexcept, and nothing catches (...).
#pragma once

#include <lua.hpp>
#include <string>
#include <string_view>

#include "engine/base/errors.h"

namespace moe::lua {

/// A Lua error in C++ code. kind: "user" (the recipe or its input is wrong), "run", "internal",
/// "stop" (evaluation ended on purpose), "lua" (a Lua error without a kind, with its traceback).
struct Failure {
  std::string kind;
  std::string message;
  std::string traceback;  // only for "lua"
};

/// A Lua error on its way through C++ frames. It is a UserError, so that code without any
/// relation to Lua treats it as the user's mistake; on return to Lua it is raised unchanged.
class LuaError : public UserError {
 public:
  explicit LuaError(Failure failure) : UserError(failure.message), failure_(std::move(failure)) {}
  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
};

/// Converts an exception that is no LuaError, UserError or RunError: kind "run" if memory, a thread
/// or a library was not available, else "internal".
Failure foreign_failure(const std::exception& error);

/// Adds functions to the table on top of the stack.
inline void set_functions(lua_State* L, std::initializer_list<luaL_Reg> functions) {
  for (const auto& [name, function] : functions) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
}

inline void push_text(lua_State* L, std::string_view text) {
  lua_pushlstring(L, text.data(), text.size());
}
/// Pushes a list of the numbers of(0) to of(n - 1).
template <class Of>
int push_list(lua_State* L, int64_t n, const Of& of) {
  lua_createtable(L, static_cast<int>(n), 0);
  for (int64_t i = 0; i < n; ++i) {
    lua_pushnumber(L, static_cast<double>(of(i)));
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

/// Pushes an error table {kind=, message=, traceback=} whose tostring is the message. The kind is
/// also kept outside the table: a table that a recipe made has no kind, and one whose field `kind`
/// a recipe changed keeps its kind.
void push_failure(lua_State* L, const Failure& failure);
/// The kind of the error value at `index`; "" if neither the engine nor the library made it.
std::string failure_kind(lua_State* L, int index);

/// Pops the error value from the stack. An error without a kind gets the kind "lua".
Failure pop_failure(lua_State* L);

/// Calls the function that is on the stack below its num_args arguments, with a traceback handler.
/// Throws RunError for an error of kind "run", InternalError for "internal", LuaError for others.
void call(lua_State* L, int num_args, int num_results);
/// Like call, but returns whether the call succeeded instead of throwing; sets `failure` if not.
bool try_call(lua_State* L, int num_args, int num_results, Failure& failure);

/// Runs a new coroutine that has a function and its arguments on its stack; returns false and sets
/// `failure` if it failed. A yield counts as a failure.
bool try_resume(lua_State* coroutine, int num_args, Failure& failure);

/// Returns the position of the innermost frame outside the library as "recipes/x.lua:5: ", or "".
std::string recipe_position(lua_State* L);
/// Returns where the Lua function on top of the stack is defined, as "recipes/x.lua:5: ".
std::string function_position(lua_State* L);

/// Runs a function that only the Lua library calls and turns its exceptions into Lua errors. A
/// UserError becomes a string without position (the library adds the recipe's line); RunError and
/// InternalError become tables with a kind, other exceptions as by foreign_failure().
int run_core_function(lua_State* L, lua_CFunction function);
/// Runs a function that recipes call; as run_core_function, but a UserError becomes an error table
/// of kind "user" whose message begins with the recipe's line.
int run_method(lua_State* L, lua_CFunction function);

template <lua_CFunction kFunction>
int core_function(lua_State* L) {
  return run_core_function(L, kFunction);
}
template <lua_CFunction kFunction>
int method(lua_State* L) {
  return run_method(L, kFunction);
}

}  // namespace moe::lua
