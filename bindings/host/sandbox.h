// The global table of recipes. It has Lua's own functions, except those that give access to the
// machine, the clock, random numbers, bytecode or the internals of the library. pairs() iterates in
// sorted order, reading an undefined global is an error, and require() loads only "moe" and Lua
// files in the recipe's folder. Limits of memory and time are in limits.h, not here.
#pragma once

#include <lua.hpp>
#include <string>

namespace moe::lua {

/// Opens the standard libraries that the Lua library may use (all of them with --trust) and makes
/// the global table of recipes.
void open_libraries(lua_State* L);

/// Compiles the text of a recipe or module and pushes the function, whose globals are the table of
/// recipes; `name` is its path in messages. Throws LuaError of kind "user" for a syntax error or
/// bytecode.
void push_chunk(lua_State* L, const std::string& text, const std::string& name);

}  // namespace moe::lua
