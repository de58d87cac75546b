// Running a plan from Lua, and what bind_plan.cpp and bind_run.cpp share.
#pragma once

#include <lua.hpp>
#include <nlohmann/json.hpp>

#include "bindings/plan_spec.h"
#include "engine/exec/executor.h"

namespace moe::lua {

constexpr const char* kPlanType = "plan";
constexpr const char* kTimelinesType = "timelines";

/// The plan that is argument 1.
PlanBox& check_plan(lua_State* L);
/// Milliseconds, as results name them.
nlohmann::json metrics_json(const Metrics& metrics);

/// plan:run{...} -> result table.
int run_plan(lua_State* L);
/// plan:trace{result =, step =} -> JSON text.
int trace_plan(lua_State* L);
/// The type of a result's timelines.
void open_run(lua_State* L);

}  // namespace moe::lua
