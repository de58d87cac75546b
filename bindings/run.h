// Running a plan from Lua, and what bind_plan.cpp and bind_run.cpp share.
#pragma once

#include <lua.hpp>
#include <nlohmann/json.hpp>

#include "bindings/plan_spec.h"
#include "bindings/policy/placement.h"
#include "engine/exec/executor.h"

namespace moe::lua {

constexpr const char* kPlanType = "plan";
constexpr const char* kTimelinesType = "timelines";

/// What a result's handle holds for plan:trace and plan:explain.
struct Timelines {
  std::shared_ptr<const Plan> plan;
  std::vector<Timeline> steps;
};

/// The plan that is argument 1.
PlanBox& check_plan(lua_State* L);
/// Milliseconds, as results name them.
nlohmann::json metrics_json(const Metrics& metrics);

/// Policies::place of a plan; null: its policy, if it has one, is built in. log: may be null.
RankPlacements placements_of(const Host& host, const PlanBox& box,
                             std::shared_ptr<PlacementLog> log = nullptr);

/// Each step of a run with these options shows on the terminal, where there is one.
void show_steps(Host& host, RunOptions& options);

/// plan:run{...} -> result table.
int run_plan(lua_State* L);
/// plan:trace{result =, step =, steps = 1} -> JSON text; of a simulation the last of the steps. ""
/// in other processes than rank 0's.
int trace_plan(lua_State* L);
/// plan:explain{result =, step =} -> table.
int explain_plan(lua_State* L);
/// The timeline of a step of a result of this plan, which the options at `index` name as result and
/// step (from 1, the first unless given); null where they name none. The stack keeps it alive.
/// Throws UserError for a result of another plan and a step that it has not.
const Timeline* executed_step(lua_State* L, int index, const PlanBox& box, const char* call);
/// The type of a result's timelines.
void open_run(lua_State* L);

}  // namespace moe::lua
