// The one border between C++ exceptions and Lua errors. Every C function that Lua sees goes through
// core_function<> or method<>; every call from C++ into Lua goes through call(). Lua errors and C++
// exceptions unwind through each other's frames here (LuaJIT on x86-64), so destructors run; no
// frame in between is noexcept, and nothing catches (...).
#pragma once

#include <lua.hpp>
#include <string>

#include "engine/base/errors.h"

namespace moe::lua {

/// A Lua error as C++ sees it. kind: "user" (the recipe or its input is wrong), "run", "internal",
/// "stop" (evaluation ended on purpose), "lua" (a Lua error without a kind, with its traceback).
struct Failure {
  std::string kind;
  std::string message;
  std::string traceback;  // only for "lua"
};

/// A Lua error on its way through C++ frames. A UserError, so that a caller that knows nothing of
/// Lua treats it as the user's mistake; the border gives it back to Lua as it came.
class LuaError : public UserError {
 public:
  explicit LuaError(Failure failure) : UserError(failure.message), failure_(std::move(failure)) {}
  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
};

/// An exception that is none of ours: "run" where the machine gave no memory, no thread or no
/// library, else "internal".
Failure foreign_failure(const std::exception& error);

/// Pushes {kind=, message=} whose tostring is the message. The state remembers the table's kind: a
/// table that a recipe made, or whose `kind` it changed, has none or its old one.
void push_error(lua_State* L, const std::string& kind, const std::string& message);
void push_failure(lua_State* L, const Failure& failure);
/// The kind of the error value at `index`; "" where neither the engine nor the library made it.
std::string failure_kind(lua_State* L, int index);

/// Takes the error value from the top of the stack. One with no kind becomes kind "lua".
Failure pop_failure(lua_State* L);

/// Calls the function under `num_args` arguments, with a traceback handler. Throws RunError for a
/// "run" error, InternalError for an "internal" one, LuaError for every other.
void call(lua_State* L, int num_args, int num_results);
/// As call, but returns whether it went well instead of throwing; the error goes to `failure`.
bool try_call(lua_State* L, int num_args, int num_results, Failure& failure);

/// Resumes a new coroutine that has the function and its arguments; false when it failed. A yield
/// is a failure.
bool try_resume(lua_State* coroutine, int num_args, Failure& failure);

/// "recipes/x.lua:5: " of the innermost frame outside the library, or "".
std::string recipe_position(lua_State* L);

/// UserError -> a string without position (the library adds the line of its caller); RunError and
/// InternalError -> tables with a kind; any other std::exception -> kind "internal".
int run_core_function(lua_State* L, lua_CFunction function);
/// The same for functions that recipes call themselves: a UserError -> {kind="user"} at their line.
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
