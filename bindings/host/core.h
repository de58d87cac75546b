// The functions that make up `core`, the module through which the Lua library (scripts/moe) calls
// the engine: one function per topic that opens its part. Recipes cannot require `core`. The
// functions of core are in bindings/api.
#pragma once

#include <lua.hpp>

namespace moe::lua {

/// Puts the table of core into package.loaded["moe.core"]: constants, files, JSON, progress,
/// machine, tables (api/core.cpp), and all parts that the functions below open.
int open_core(lua_State* L);
/// A function for Lua with one argument. Loads the library and the recipe; returns the library's
/// _main and its arguments: HostOptions::mode, and the compiled recipe or, without a recipe, the
/// given argument (nil for "").
int prepare_main(lua_State* L);

// Each of the following adds the functions of core that its file registers to the table on top of
// the stack, and makes the types that these return: open_x is in api/x.cpp, unless said.
void open_plan(lua_State* L);     // api/plan.cpp and api/run.cpp
void open_handles(lua_State* L);  // api/graph.cpp, api/op.cpp and api/schedule.cpp
void open_builder(lua_State* L);  // policy/model.cpp
void open_calibrate(lua_State* L);
void open_network(lua_State* L);
void open_dispatch(lua_State* L);
void open_lina(lua_State* L);
void open_pipeline(lua_State* L);
void open_pipemoe(lua_State* L);
void open_prophet(lua_State* L);
void open_routing(lua_State* L);
void open_simulations(lua_State* L);  // sweep/simulations.cpp
void open_gate(lua_State* L);
void open_placement(lua_State* L);  // api/placement.cpp and policy/placed.cpp

}  // namespace moe::lua
