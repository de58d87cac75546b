// What a recipe finds in its global table: Lua's own functions less those that reach the machine,
// the clock, chance, bytecode or the library's insides; pairs in sorted order; strict globals;
// require for "moe" and for files beside the recipe.
#pragma once

#include <lua.hpp>
#include <string>

namespace moe::lua {

/// Opens the standard libraries that the Lua library may use (all of them under --trust) and makes
/// the recipes' global table.
void open_libraries(lua_State* L);

/// Pushes the function of a text chunk whose globals are the recipes' table; `name` is its path in
/// messages. Throws LuaError (kind "user") for a syntax error or bytecode.
void push_chunk(lua_State* L, const std::string& text, const std::string& name);

}  // namespace moe::lua
