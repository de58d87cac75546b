// Running a plan from Lua, and what api/plan.cpp and api/run.cpp share.
#pragma once

#include <lua.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "bindings/plan_spec.h"
#include "bindings/policy/placement.h"
#include "engine/exec/executor.h"

namespace moe::lua {

constexpr const char* kPlanType = "plan";
constexpr const char* kTimelinesType = "timelines";

/// The field `timelines` of what simulating or executing a plan gives, which plan:trace, plan:spans
/// and plan:explain take: none of them simulates. In a job rank 0's alone has any.
struct Timelines {
  std::shared_ptr<const Plan> plan;
  std::map<int64_t, Timeline> steps;  // by step of the run, from 1
};

/// The plan that is argument 1.
PlanHandle& check_plan(lua_State* L);

/// Policies::place of a plan; null: its policy, if it has one, is built in. log: may be null.
RankPlacements placements_of(const Host& host, const PlanHandle& handle,
                             std::shared_ptr<PlacementLog> log = nullptr);

/// Each step of a run with these options shows on the terminal, where there is one.
void show_steps(Host& host, RunOptions& options);

/// plan:run{...} -> result table.
int run_plan(lua_State* L);
/// plan:trace{{timelines =, step =}, ...} -> JSON text; "" in other processes than rank 0's.
int trace_plan(lua_State* L);
/// plan:explain{timelines =, step =} -> table.
int explain_plan(lua_State* L);
/// A step and its timeline, which the table at `index` names as step (unless given the first that
/// is kept) and timelines; on the stack, the handle keeps it alive. Throws UserError for timelines
/// of another plan and for a step that is not among them.
const std::pair<const int64_t, Timeline>& step_given(lua_State* L, int index,
                                                     const PlanHandle& handle, const char* call);
/// The type of the timelines.
void open_run(lua_State* L);

}  // namespace moe::lua
