// Running a plan from Lua: the functions and types that api/plan.cpp, api/run.cpp and
// api/explain.cpp share. What only inference needs is in infer.h.
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

/// The value of the field `timelines` in the results of plan:simulate and plan:run. plan:trace,
/// plan:spans and plan:explain take it, so that they need not simulate again. In a job of several
/// processes only rank 0's value contains timelines.
struct Timelines {
  std::shared_ptr<const Plan> plan;
  std::map<int64_t, Timeline> steps;  // indexed by the step of the run, from 1
};

PlanHandle& check_plan(lua_State* L, int index = 1);

/// Returns the function Policies::place of a plan; it is null if the plan has no placement policy
/// written in Lua. log: may be null. executor: the one that runs the plan.
RankPlacements placements_of(const Host& host, const PlanHandle& handle,
                             std::string_view executor = "simulate",
                             std::shared_ptr<PlacementLog> log = nullptr);

/// Returns tokens of the same kind as those of a run with the data `data`, but not the same tokens:
/// held-out text for a text. Returns null where there are none.
DataSource other_tokens(const Host& host, const Fields& data, const PlanSpec& spec);

/// Sets the options so that each step of the run is shown on the terminal, if there is one.
void show_steps(Host& host, RunOptions& options);

/// plan:run{...} -> result table.
int run_plan(lua_State* L);
/// plan:trace{{timelines =, step =}, ...} -> JSON text; "" in other processes than rank 0's.
int trace_plan(lua_State* L);
/// plan:explain{timelines =, step =} -> table.
int explain_plan(lua_State* L);
/// Returns a step and its timeline, which the table at `index` names by the fields timelines and
/// step (default: the first step that has a timeline). The handle of the timelines is left on the
/// stack, where it keeps them alive. `call` names the caller in errors. Throws UserError for
/// timelines of another plan, or for a step that is not among them.
const std::pair<const int64_t, Timeline>& step_given(lua_State* L, int index,
                                                     const PlanHandle& handle, const char* call);
/// Adds the types of results, and to the table on top of the stack:
///   run_in_turns({plan, ...}, {request of plan:run, ...}, steps) -> a handle. Runs the plans in
///     turns of `steps` steps (run_in_turns() in engine/run.h), and with them the rehearsal of the
///     first plan, if it has one.
///   result_in_turns(handle, i) -> what plan:run returns or raises for the i-th plan, once. With a
///     rehearsal the result has `slower`: the factor by which the machine was slower during the
///     runs than in the rehearsal before them.
///   too_large_together({plan, ...}) -> the reason why this process cannot allocate the memory of
///     all plans, and of the first one's rehearsal, at the same time; nil if it can.
void open_run(lua_State* L);

/// Returns what each pipeline rank does in a step: { turns = { { text, begin_ms, end_ms } } } and
/// its Bubbles.
nlohmann::json pipeline_json(const Plan& plan, const Timeline& timeline);

}  // namespace moe::lua
