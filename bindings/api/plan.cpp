// core.plan, and the methods of a plan that return information: simulate, spans, info, order, text.
// Running a plan is in run.cpp.
#include <algorithm>

#include "bindings/host/core.h"
#include "bindings/host/field_json.h"
#include "bindings/host/host.h"
#include "bindings/host/job.h"
#include "bindings/host/userdata.h"
#include "bindings/plan_spec.h"
#include "bindings/run.h"
#include "engine/analysis/idle_stages.h"
#include "engine/analysis/packing.h"
#include "engine/analysis/step_composer.h"
#include "engine/analysis/step_summary.h"
#include "engine/analysis/weight_gradients.h"
#include "engine/base/limits.h"
#include "engine/cost/dispatch_cost.h"
#include "engine/graph/text.h"
#include "engine/profile/predict.h"
#include "engine/routing/executed_routing.h"
#include "engine/run.h"

namespace moe::lua {
namespace {

using nlohmann::json;

int make(lua_State* L) {
  Host& host = Host::of(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  if (host.options().mode == "policies") throw LuaError({"stop", "a plan is made here", ""});
  host.end_loading();
  const Host::EngineCall call(host);
  PlanHandle handle = plan_for_all(L, 1);
  push_kept<PlanHandle>(L, kPlanType, std::move(handle));
  return 1;
}

int check_model(lua_State* L) {
  const json model = to_json(L, 1, true);
  check(model_of({model, "model"}), static_cast<int64_t>(luaL_checknumber(L, 2)));
  return 0;
}

json alone_json(const Plan& plan) {
  json all = json::object();
  for (const auto& [key, sum] : ops_alone(plan.graph, *plan.spec.cost)) all[key] = sum.ms();
  return all;
}

// Returns the metrics simulated with times of ops alone (no rehearsal's factors).
json ops_alone_json(const Plan& plan, const ProfileCost& profile, const RunOptions& options,
                    const std::string& statistic) {
  const RunResult result = run(with_in_step(plan, profile, std::nullopt), "simulate", options);
  return values_json(mean_metrics(result.metrics, counted_steps(result.metrics, statistic)));
}

/// Returns the times that stand for all steps of a simulation, with the statistic that
/// counted_steps() takes.
json times_json(const Plan& plan, const RunResult& result, const std::string& statistic) {
  const std::vector<size_t> counted = counted_steps(result.metrics, statistic);
  const auto mean_ms = [&](const auto& ns_of) {
    TimeSum sum;
    for (const size_t step : counted) sum += ns_of(step);
    const auto what = [] { return "a step"; };
    return to_ms(sum.mean(static_cast<Nanoseconds>(counted.size()), what));
  };
  json out = values_json(mean_metrics(result.metrics, counted));
  out["statistic"] = statistic == "median" ? "median" : "mean";
  out["forward_ms"] =
      mean_ms([&](size_t i) { return forward_end_ns(plan.graph, result.timelines[i]); });
  out["lower_bound_ms"] = mean_ms([&](size_t i) { return result.bounds[i].ns(); });
  out["critical_path_ms"] = mean_ms([&](size_t i) { return result.bounds[i].critical_path_ns; });
  out["busiest_lane_ms"] = mean_ms([&](size_t i) { return result.bounds[i].busiest_lane_ns; });
  if (const std::vector<double>& loads = result.load_imbalance; !loads.empty()) {
    double sum = 0;
    for (const size_t step : counted) sum += loads[step];
    out["load_imbalance"] = sum / static_cast<double>(counted.size());
  }
  return out;
}

// Moves the timelines of steps that the option `keep` names ("first", "last" or "all") to `to`.
void keep_timelines(const std::string& keep, std::vector<Timeline>& from, Timelines& to) {
  const size_t first = keep == "last" ? from.size() - 1 : 0;
  const size_t end = keep == "first" ? 1 : from.size();
  for (size_t i = first; i < end; ++i) to.steps.emplace(i + 1, std::move(from[i]));
}

/// Returns the routing that the option `executed` of simulate gives, or null.
std::shared_ptr<const RoutingModel> executed_of(const Fields& fields) {
  if (!fields.has("executed")) return nullptr;
  const json& used = fields.value().at("executed");
  return std::make_shared<const RoutingModel>(
      executed_routing(used.get<std::vector<std::vector<std::vector<int64_t>>>>()));
}

/// Returns the plan as a prediction assumes it: on a machine that is `slower` than in the
/// rehearsal, or if beside than in the rehearsal's last steps beside runs; with the routing
/// `executed`. Where that is null, and if PlanHandle::routes_as_rehearsed, with the routing of the
/// rehearsed steps.
std::shared_ptr<const Plan> predicted_plan(const PlanHandle& handle, bool beside, double slower,
                                           const std::shared_ptr<const RoutingModel>& executed) {
  if (!handle.rehearsal) return handle.plan;
  InStep in_step = beside ? handle.rehearsal->in_step_beside() : handle.rehearsal->in_step();
  in_step.slower = slower;
  auto plan = std::make_shared<Plan>(with_in_step(*handle.plan, *handle.profile, in_step));
  if (handle.routes_as_rehearsed) plan->spec.routing = handle.rehearsal->routing();
  if (executed) plan->spec.routing = executed;
  return plan;
}

json simulated_json(Host& host, const PlanHandle& handle, const json& values,
                    Timelines& timelines) {
  const auto log = std::make_shared<PlacementLog>();
  const Fields fields(values, "simulate");
  const std::shared_ptr<const RoutingModel> executed = executed_of(fields);
  const std::shared_ptr<const Plan> predicted =
      predicted_plan(handle, fields.flag("beside", false), fields.number("slower", 1), executed);
  const Plan& plan = *predicted;
  const std::string keep = fields.text("keep", "first");
  RunOptions options;
  read_fields(fields, options);
  if (handle.routes_as_rehearsed && !executed) {
    options.steps = std::max(options.steps, handle.rehearsal->num_steps());
  }
  const std::string executor = fields.text("executor", "simulate");
  options.policies.place = placements_of(host, handle, executor, log);
  if (fields.flag("links", false)) options.links_of_step = keep == "last" ? options.steps - 1 : 0;
  if (options.steps > 1) show_steps(host, options);
  const int64_t begin = steady_ns();
  RunResult result = run(plan, executor, options);
  options.on_step = nullptr;
  const int64_t end = steady_ns();
  const std::string statistic = fields.text("statistic", "mean");
  json out = times_json(plan, result, statistic);
  std::vector<double> samples;
  for (const Metrics& m : result.metrics) samples.push_back(to_ms(m.makespan_ns));
  out["samples_ms"] = samples;
  std::sort(samples.begin(), samples.end());
  out["median_ms"] = (samples[(samples.size() - 1) / 2] + samples[samples.size() / 2]) / 2;
  out["peak_bytes"] = plan.memory.peak_bytes();
  out["liveness_bytes"] = plan.memory.liveness_bytes;
  if (!result.stop_reason.empty()) out["no_room"] = result.stop_reason;
  out["sim_ms"] = to_ms(end - begin);
  out["alone_ms"] = alone_json(plan);
  if (!plan.programs.empty()) out["pipeline"] = pipeline_json(plan, result.timelines.front());
  const MeasuredShares shares = measured_shares(plan.graph, *plan.spec.cost);
  out["measured_share"] = shares.measured;
  out["extrapolated_share"] = shares.extrapolated;
  if (handle.profile && handle.profile->in_step()) {
    options.policies.place = placements_of(host, handle);  // new, without state of earlier steps
    options.links_of_step = -1;
    out["ops_alone"] = ops_alone_json(plan, *handle.profile, options, statistic);
  }
  if (!result.placements.empty()) {
    out["placements"] = placements_json(result, options.first_step, *log);
  }
  keep_timelines(keep, result.timelines, timelines);
  return out;
}

/// plan:simulate { steps = 1, first_step = 0, keep = "first", links = false, statistic = "mean" }
/// -> the means of the steps' metrics (counted_steps(); steps differ only under a routing model)
/// and, in the field `timelines`, a handle of timelines. keep: which steps' timelines are kept:
/// "first", "last" or "all". Of a plan with a rehearsal: beside: whether the machine is as in the
/// steps of it that ran in turns with the last runs; slower: by what factor it is slower than that,
/// or than in the rehearsal; executed: the used slots of executed steps, [step][MoE layer][rank *
/// experts], which are the routing then.
/// links: whether the last step's timeline (keep = "last"), else the first step's, also has
/// the bytes that links carry. The field no_room is given where a device has no room for its rows
/// in a step.
int simulate(lua_State* L) {
  const PlanHandle& handle = check_plan(L);
  Host& host = Host::of(L);
  const Host::EngineCall call(host);
  const json values = lua_istable(L, 2) ? to_json(L, 2, true) : json::object();
  Timelines timelines{handle.plan, {}};
  push_json(L, broadcast_from_root(host, "simulate", [&] {
              return simulated_json(host, handle, values, timelines);
            }));
  push_kept<Timelines>(L, kTimelinesType, std::move(timelines));
  lua_setfield(L, -2, "timelines");
  return 1;
}

/// Returns the spans of a step, of the first rank or of all ranks, in order of begin.
json spans_json(lua_State* L, const PlanHandle& handle, bool all_ranks) {
  const Plan& plan = *handle.plan;
  json all = json::array();
  for (const Span& span : step_given(L, 2, handle, "spans").second.spans) {
    if (span.rank != 0 && !all_ranks) continue;
    all.push_back({{"op", plan.graph.op(span.op).name},
                   {"kind", plan.graph.def(span.op).name},
                   {"rank", span.rank + 1},
                   {"lane", plan.schedule.lanes[span.lane.index()].name},
                   {"chunk", span.chunk + 1},
                   {"bytes", span.bytes},
                   {"post_ms", to_ms(span.post)},
                   {"begin_ms", to_ms(span.begin)},
                   {"end_ms", to_ms(span.end)}});
  }
  return all;
}

/// plan:spans { timelines, step, all_ranks } -> a list of { op, kind, rank, lane, chunk (from 1),
/// bytes, post_ms, begin_ms, end_ms }
int spans(lua_State* L) {
  const PlanHandle& handle = check_plan(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  const Host::EngineCall call(Host::of(L));
  lua_getfield(L, 2, "all_ranks");
  const bool all_ranks = lua_toboolean(L, -1) != 0;
  push_json(L, broadcast_from_root(Host::of(L), "spans",
                                   [&] { return spans_json(L, handle, all_ranks); }));
  return 1;
}

/// plan:compose({ timelines, step }, the turns of a step of many micro-batches, as a plan's
/// pipeline) -> { iteration_ms, idle_ms = by pipeline rank }. The timelines of the first call
/// count.
int compose(lua_State* L) {
  PlanHandle& handle = check_plan(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  const Host::EngineCall call(Host::of(L));
  const json many = to_json(L, 3);
  if (!handle.composer) {
    handle.composer = std::make_shared<const StepComposer>(
        handle.plan, step_given(L, 2, handle, "compose").second);
  }
  push_json(L, broadcast_from_root(Host::of(L), "compose", [&] {
              const PipelineSpec spec = pipeline_of({many, "pipeline"}, *handle.plan->spec.model);
              const ComposedStep step = handle.composer->compose(spec);
              json out = {{"iteration_ms", to_ms(step.step_ns)}};
              for (const Nanoseconds ns : step.idle_ns) out["idle_ms"].push_back(to_ms(ns));
              return out;
            }));
  return 1;
}

json stages_json(const Plan& plan) {
  json all = json::array();
  for (const StageReport& s : plan.stages) {
    json changes = json::object();
    const auto add = [&](const char* what, int64_t count) {
      if (count != 0) changes[what] = count;
    };
    add("ops", s.changes.ops);
    add("order_edges", s.changes.order_edges);
    add("lanes", s.changes.lanes);
    add("priorities", s.changes.priorities);
    add("chunks", s.changes.chunks);
    add("disciplines", s.changes.disciplines);
    add("holds", s.changes.holds);
    all.push_back({{"name", s.name},
                   {"changed", s.changed},
                   {"changes", std::move(changes)},
                   {"ms", to_ms(s.took_ns)}});
  }
  return all;
}

json without_effect_json(const Plan& plan) {
  json all = json::array();
  for (const IdleStage& s : idle_stages(plan)) {
    if (!s.by_option) all.push_back({{"stage", s.name}, {"reason", s.why}});
  }
  return all;
}

json log_json(const Plan& plan) {
  json all = json::array();
  for (const Decision& d : plan.schedule.log) {
    all.push_back({{"op", d.op}, {"stage", d.stage}, {"why", d.why}});
  }
  return all;
}

/// Returns what the plan assumes of the routing: { gate, scores, sources, tokens, choices,
/// dropped } if a gate was sampled, { gate } if it did not run (the recipe gives `fill`),
/// { choices_of, sources, tokens, choices, dropped } if a routing model replaces the gate.
json assumed_routing_json(const AssumedRouting& routing) {
  json all = json::object();
  if (routing.choices.empty()) {
    all["gate"] = routing.gate;
  } else {
    all["choices_of"] = routing.choices;
  }
  if (routing.sample.sources > 0) {
    if (routing.choices.empty()) all["scores"] = routing.scores;
    all.update({{"sources", routing.sample.sources},
                {"tokens", routing.sample.tokens},
                {"choices", routing.sample.choices},
                {"dropped", routing.dropped()}});
  }
  return all;
}

/// Returns the planned memory of the ranks of a program.
json memory_json(const Plan& program) {
  constexpr size_t kHolders = 10;
  const MemoryPlan& memory = program.memory;
  const Peak peak = peak_of(program.graph, program.schedule, program.orders, memory, kHolders);
  json parts = json::array();
  for (const PeakPart& part : peak.parts) {
    parts.push_back({{"what", part.what}, {"bytes", part.bytes}});
  }
  return {{"peak_bytes", memory.peak_bytes()}, {"liveness_bytes", memory.liveness_bytes},
          {"arena_bytes", memory.arena_bytes}, {"persistent_bytes", memory.persistent_bytes},
          {"peak_parts", std::move(parts)},    {"holders", peak.holders}};
}

/// The dispatcher of a plan with its first exchange of each way, or null. Bytes are per node.
json dispatcher_json(const Plan& plan) {
  const Dispatcher* const dispatcher = plan.spec.dispatcher.get();
  if (dispatcher == nullptr) return nullptr;
  const double sms = static_cast<double>(dispatcher->route.sms);
  json made = {
      {"name", dispatcher->route.name},
      {"sms", sms},
      {"slower",
       dispatcher->gpu_sms > sms ? dispatcher->gpu_sms / (dispatcher->gpu_sms - sms) : 1.0},
      {"host_sync", dispatcher->route.host_sync}};
  for (const OpId id : plan.graph.op_ids()) {
    if (!Dispatcher::runs(plan.graph, plan.graph.op(id))) continue;
    const auto to = Dispatcher::way(plan.graph.op(id));
    const char* const way = name_of(to);
    if (made.contains(way)) continue;
    const DispatchUse use = dispatcher->use(plan.graph, id, plan.spec.work);
    made[way] = {{"op", plan.graph.op(id).name},
                 {"dtype", name_of(dispatcher->route.wire(to))},
                 {"us", static_cast<double>(plan.spec.cost->op_ns(plan.graph, id)) / 1e3},
                 {"start_us", use.parts.start},
                 {"nic_us", use.parts.nic},
                 {"nvlink_us", use.parts.nvlink},
                 {"sm_us", use.parts.sm},
                 {"logical_bytes", use.logical_bytes},
                 {"nic_bytes", use.nic_bytes},
                 {"nvlink_bytes", use.nvlink_bytes}};
  }
  return made;
}

json info_json(const Host&, const PlanHandle& handle) {
  const Plan& plan = *handle.plan;
  const auto [full, rank] = plan.fullest();
  json lanes = json::array();
  for (const Lane& lane : plan.schedule.lanes) lanes.push_back(lane.name);
  json all = {{"num_ops", plan.graph.num_ops()},
              {"plan_ms", to_ms(plan.plan_ns)},
              {"hash", plan.hash},
              {"stages", stages_json(plan)},
              {"without_effect", without_effect_json(plan)},
              {"fullest_rank", rank + 1},
              {"log", log_json(plan)},
              {"lanes", lanes},
              {"cost", plan.spec.cost->describe()},
              {"fill", plan.spec.work.slot_occupancy},
              {"padded_rows", plan.spec.model->capacity_factor > 0 ? "" : padded_rows(plan.graph)},
              {"assumed_routing", assumed_routing_json(handle.routing)},
              {"profile_ms", handle.profile ? to_ms(handle.profile->measuring_ns()) : 0.0},
              {"rehearsal_ms", handle.profile && handle.profile->in_step()
                                   ? to_ms(handle.profile->in_step()->took_ns)
                                   : 0.0},
              {"rehearsal_others", handle.rehearsal ? handle.rehearsal->in_step().others : 0.0},
              {"rehearsal_spread", handle.rehearsal ? handle.rehearsal->in_step().spread : 0.0},
              {"speed_spread", handle.rehearsal ? handle.rehearsal->in_step().speed_spread : 0.0},
              {"num_profiled", handle.profile ? handle.profile->num_measured() : 0},
              {"num_disturbed", handle.profile ? handle.profile->num_disturbed() : 0}};
  if (plan.spec.dispatcher && plan.spec.cost->has_times())
    all["dispatcher"] = dispatcher_json(plan);
  all.update(memory_json(*full));
  for (const auto& program : plan.programs) {
    all["peak_bytes_by_rank"].push_back(program->memory.peak_bytes());
  }
  return all;
}

/// plan:memory_of(pipeline rank, from 1)
int memory_of(lua_State* L) {
  const Plan& plan = *check_plan(L).plan;
  push_json(L, memory_json(plan.program((luaL_checkinteger(L, 2) - 1) * plan.spec.num_ranks)));
  return 1;
}

json overlap_json(const Host&, const PlanHandle& handle) {
  const WeightGradientOverlap overlap =
      weight_gradient_overlap(handle.plan->graph, *handle.plan->spec.cost);
  json out = {{"num_a2a", overlap.num_a2a},
              {"num_dw", overlap.num_dw},
              {"a2a_ms", to_ms(overlap.a2a_ns)},
              {"dw_ms", to_ms(overlap.dw_ns)},
              {"greedy_ms", to_ms(overlap.greedy_ns)},
              {"bound_ms", to_ms(overlap.bound_ns)}};
  if (overlap.exact_ns) out["exact_ms"] = to_ms(*overlap.exact_ns);
  return out;
}

json micro_ops_json(const Host&, const PlanHandle& handle) {
  const MicroOpTimes times = micro_op_times(handle.plan->graph, *handle.plan->spec.cost);
  return {{"a2a_ms", times.a2a_ms}, {"ffn_ms", times.ffn_ms}, {"num", times.num}};
}

json exchange_ms_json(const Host&, const PlanHandle& handle) {
  return packing_exchange_ms(handle.plan->spec);
}

/// A method of a plan: rank 0 computes the result by kFind, and all processes return it.
template <json (*kFind)(const Host&, const PlanHandle&)>
int tell(lua_State* L) {
  const PlanHandle& handle = check_plan(L);
  const Host& host = Host::of(L);
  const Host::EngineCall call(Host::of(L));
  push_json(L, broadcast_from_root(host, "plan", [&] { return kFind(host, handle); }));
  return 1;
}

/// plan:rehearse(since): rehearses the plan's target anew, if it is rehearsed at all and the last
/// rehearsal began before `since` (of core.clock), and lets predictions use what it finds.
int rehearse(lua_State* L) {
  PlanHandle& handle = check_plan(L);
  const Host::EngineCall call(Host::of(L));
  if (!handle.rehearsal) return 0;
  handle.rehearsal->execute(static_cast<Nanoseconds>(luaL_checknumber(L, 2) * 1e9));
  handle.profile->set_in_step(handle.rehearsal->in_step());
  return 0;
}

int order(lua_State* L) {
  const Plan& plan = *check_plan(L).plan;
  const LaneId lane = plan.schedule.lane(luaL_checkstring(L, 2));
  json names = json::array();
  for (const OpId op : plan.orders.lanes[lane.index()]) names.push_back(plan.graph.op(op).name);
  push_json(L, names);
  return 1;
}

/// plan:text(pipeline rank, from 1, or nil: all in one graph)
int text(lua_State* L) {
  const Plan& plan = *check_plan(L).plan;
  const int64_t rank = luaL_optinteger(L, 2, 0);
  const std::string text =
      print(rank == 0 ? plan.graph : plan.program((rank - 1) * plan.spec.num_ranks).graph);
  push_text(L, text);
  return 1;
}

}  // namespace

PlanHandle& check_plan(lua_State* L, int index) {
  return check_userdata<PlanHandle>(L, index, kPlanType);
}

void open_plan(lua_State* L) {
  new_inner_type<PlanHandle>(L, kPlanType,
                             {{"compose", core_function<compose>},
                              {"exchange_ms", core_function<tell<exchange_ms_json>>},
                              {"explain", core_function<explain_plan>},
                              {"info", core_function<tell<info_json>>},
                              {"memory_of", core_function<memory_of>},
                              {"order", core_function<order>},
                              {"micro_ops", core_function<tell<micro_ops_json>>},
                              {"overlap", core_function<tell<overlap_json>>},
                              {"rehearse", core_function<rehearse>},
                              {"run", core_function<run_plan>},
                              {"simulate", core_function<simulate>},
                              {"spans", core_function<spans>},
                              {"text", core_function<text>},
                              {"trace", core_function<trace_plan>}});
  open_run(L);
  set_functions(L, {{"plan", core_function<make>}, {"check_model", core_function<check_model>}});
}

}  // namespace moe::lua
