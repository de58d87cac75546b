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

/// Adds core.plan and core.check_model to the table on top of the stack, and makes the type of
/// plans (api/plan.cpp, api/run.cpp).
void open_plan(lua_State* L);
/// Makes the types of graph, op, tensor and schedule handles (api/graph.cpp, api/op.cpp,
/// api/schedule.cpp).
void open_handles(lua_State* L);
/// Adds core.model_counts to the table on top, and makes the type of the builder of models
/// (policy/model.cpp).
void open_builder(lua_State* L);
/// Adds core.calibrate to the table on top (api/calibrate.cpp).
void open_calibrate(lua_State* L);
/// Adds core.collectives, core.op_table and core.op_time, which are defined in api/network.cpp, to
/// the table on top of the stack.
void open_network(lua_State* L);
/// Adds core.check_exchange, core.dispatch, _rows and _us to the table on top (api/dispatch.cpp).
void open_dispatch(lua_State* L);
/// Adds core.lina_popularity to the table on top, and makes the type of a profile (api/lina.cpp).
void open_lina(lua_State* L);
/// Adds core.pipeline_rows, core.pipeline_times and core.lane_times to the table on top
/// (api/pipeline.cpp).
void open_pipeline(lua_State* L);
/// Adds core.pipemoe_degree, _fit and _time to the table on top (api/pipemoe.cpp).
void open_pipemoe(lua_State* L);
/// Adds core.prophet_plan and core.prophet_place to the table on top (api/prophet.cpp).
void open_prophet(lua_State* L);
/// Adds core.workload, core.loads, core.choices and core.trace_routing, _info and _write to the
/// table on top, and makes the type of a routing model (api/routing.cpp).
void open_routing(lua_State* L);
/// Adds core.simulation_key, core.find_simulation, core.store_simulation, core.touched and
/// core.workers to the table on top, and makes the type of workers (sweep/simulations.cpp).
void open_simulations(lua_State* L);
/// Makes the types of the arguments of a gate's route() (api/gate.cpp).
void open_gate(lua_State* L);
/// Makes the types of the arguments of a placement policy's place() (api/placement.cpp,
/// policy/placed.cpp).
void open_placement(lua_State* L);

}  // namespace moe::lua
