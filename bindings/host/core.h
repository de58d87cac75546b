// The functions that the Lua library sees as `core`, one opener a topic.
#pragma once

#include <lua.hpp>

namespace moe::lua {

/// Puts the table into package.loaded["moe.core"]: constants, files, JSON, progress, machine,
/// tables (bind_core.cpp) and the functions below.
int open_core(lua_State* L);
/// (argument) -> loads the library and the recipe; returns its _main and the arguments for it: the
/// host's mode, and the recipe's chunk or (no recipe) the argument, nil for "".
int prepare_main(lua_State* L);

/// core.plan, core.check_model into the table on top; the plan's type
/// (bind_plan.cpp, bind_run.cpp).
void open_plan(lua_State* L);
/// The types of graph, op, tensor and schedule handles (bind_graph.cpp, bind_schedule.cpp).
void open_handles(lua_State* L);
/// core.calibrate, core.nccl_log into the table on top (bind_calibrate.cpp).
void open_calibrate(lua_State* L);
/// core.collectives into the table on top (bind_network.cpp).
void open_network(lua_State* L);
/// core.lina_inference, _locality, _place, _popularity, _trace into the table on top; the types of
/// a trace and of a profile (bind_lina.cpp).
void open_lina(lua_State* L);
/// core.pipemoe_degree, _fit, _simulate, _time into the table on top (bind_pipemoe.cpp).
void open_pipemoe(lua_State* L);
/// core.prophet_plan, core.prophet_place into the table on top (bind_prophet.cpp).
void open_prophet(lua_State* L);
/// core.workload, core.loads, core.trace_routing, _info, _import, _export into the table on top;
/// the type of a routing model (bind_routing.cpp).
void open_routing(lua_State* L);
/// The types of a gate's views (bind_gate.cpp).
void open_gate(lua_State* L);
/// The types of a placement policy's views (bind_placement.cpp, bind_placed.cpp).
void open_placement(lua_State* L);

}  // namespace moe::lua
