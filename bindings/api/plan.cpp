// core.plan and what a plan tells: simulate, info, order, text. Running it is in bind_run.cpp.
#include <algorithm>
#include <map>
#include <numeric>

#include "bindings/host/core.h"
#include "bindings/host/field_json.h"
#include "bindings/host/host.h"
#include "bindings/host/job.h"
#include "bindings/host/userdata.h"
#include "bindings/plan_spec.h"
#include "bindings/run.h"
#include "engine/analysis/idle_stages.h"
#include "engine/base/limits.h"
#include "engine/graph/text.h"
#include "engine/passes/order/dw_schedule.h"
#include "engine/replay/replay.h"
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
  PlanBox box = plan_for_all(L, 1);
  push_kept<PlanBox>(L, kPlanType, std::move(box));
  return 1;
}

int check_model(lua_State* L) {
  const json model = to_json(L, 1, true);
  check(model_of({model, "model"}), static_cast<int64_t>(luaL_checknumber(L, 2)));
  return 0;
}

int check_cluster(lua_State* L) {
  const json cluster = to_json(L, 1, true);
  check(cluster_of({cluster, "cluster"}));
  return 0;
}

// Time of a rank's ops, each alone: collectives by kind, the rest by segment.
json alone_json(const Plan& plan) {
  std::map<std::string, TimeSum> sums;
  for (size_t i = 0; i < plan.graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    const OpDef& def = plan.graph.def(id);
    const std::string key =
        def.lane == LaneKind::kComm ? def.name : segment_name(plan.graph.op(id).segment);
    sums[key] += plan.spec.cost->op_ns(plan.graph, id);
  }
  json all = json::object();
  for (const auto& [key, sum] : sums) all[key] = sum.ms();
  return all;
}

Nanoseconds forward_end_ns(const Plan& plan, const Timeline& timeline) {
  Nanoseconds end = 0;
  for (const Span& span : timeline.spans) {
    if (plan.graph.op(span.op).phase == Phase::kForward) end = std::max(end, span.end);
  }
  return end;
}

// The step of the median makespan; the lower one of two.
size_t median_step(const std::vector<Metrics>& steps) {
  std::vector<std::pair<Nanoseconds, size_t>> order;
  for (size_t i = 0; i < steps.size(); ++i) order.emplace_back(steps[i].makespan_ns, i);
  std::sort(order.begin(), order.end());
  return order[(order.size() - 1) / 2].second;
}

// What the plan would take if its ops took in a step what they take alone: the prediction before
// anything was rehearsed.
json ops_alone_json(const PlanBox& box, RunOptions options) {
  const auto alone = std::make_shared<ProfileCost>(*box.profile);
  alone->set_in_step(std::nullopt);
  Plan plan = *box.plan;
  plan.spec.cost = alone;
  const RunResult result = run(plan, "simulate", options);
  return metrics_json(result.metrics[median_step(result.metrics)]);
}

json simulated_json(Host& host, const PlanBox& box, const json& values) {
  const Plan& plan = *box.plan;
  const auto log = std::make_shared<PlacementLog>();
  const Fields fields(values, "simulate");
  RunOptions options;
  options.policies.place = placements_of(host, box, log);
  options.steps = std::max<int64_t>(1, fields.integer("steps", 1));
  options.first_step = fields.integer("first_step", 0);
  if (options.steps > 1) show_steps(host, options);
  const int64_t begin = steady_ns();
  const RunResult result = run(plan, "simulate", options);
  options.on_step = nullptr;
  const int64_t end = steady_ns();
  const size_t middle = median_step(result.metrics);
  const auto op_ns = [&](OpId op) { return plan.spec.cost->op_ns(plan.graph, op); };
  const LowerBound bound = lower_bound(plan.graph, plan.schedule, op_ns);
  json out = metrics_json(result.metrics[middle]);
  json samples = json::array();
  for (const Metrics& m : result.metrics) samples.push_back(to_ms(m.makespan_ns));
  out["samples_ms"] = std::move(samples);
  out["forward_ms"] = to_ms(forward_end_ns(plan, result.timelines[middle]));
  out["lower_bound_ms"] = to_ms(bound.ns());
  out["critical_path_ms"] = to_ms(bound.critical_path_ns);
  out["busiest_lane_ms"] = to_ms(bound.busiest_lane_ns);
  out["peak_bytes"] = plan.memory.peak_bytes();
  out["liveness_bytes"] = plan.memory.liveness_bytes;
  out["sim_ms"] = to_ms(end - begin);
  out["alone_ms"] = alone_json(plan);
  if (box.profile && box.profile->in_step()) {
    options.policies.place = placements_of(host, box);  // from the beginning
    out["ops_alone"] = ops_alone_json(box, options);
  }
  if (!result.placements.empty()) {
    out["placements"] = placements_json(result, options.first_step, *log);
  }
  return out;
}

/// plan:simulate { steps = 1, first_step = 0 }: figures are those of the median step; steps differ
/// under a routing law only.
int simulate(lua_State* L) {
  const PlanBox& box = check_plan(L);
  Host& host = Host::of(L);
  const Host::EngineCall call(host);
  const json values = lua_istable(L, 2) ? to_json(L, 2, true) : json::object();
  push_json(L, told(host, "simulate", [&] { return simulated_json(host, box, values); }));
  return 1;
}

/// The simulated timeline of a step, of the first rank or of all, by begin.
json spans_json(const Host& host, const PlanBox& box, const json& values) {
  const Plan& plan = *box.plan;
  const Fields fields(values, "spans");
  const bool all_ranks = fields.flag("all_ranks", false);
  RunOptions options;
  options.policies.place = placements_of(host, box);
  options.steps = fields.integer("step");  // from the first one: each is placed by the one before
  const RunResult result = run(plan, "simulate", options);
  json all = json::array();
  for (const Span& span : result.timelines.back().spans) {
    if (span.rank != 0 && !all_ranks) continue;
    all.push_back({{"op", plan.graph.op(span.op).name},
                   {"kind", plan.graph.def(span.op).name},
                   {"rank", span.rank + 1},
                   {"lane", plan.schedule.lanes[span.lane.index()].name},
                   {"chunk", span.chunk + 1},
                   {"post_ms", to_ms(span.post)},
                   {"begin_ms", to_ms(span.begin)},
                   {"end_ms", to_ms(span.end)}});
  }
  return all;
}

/// plan:spans { step = from 1, all_ranks }: { op, kind, rank, lane, chunk (from 1), post_ms,
/// begin_ms, end_ms } each.
int spans(lua_State* L) {
  const PlanBox& box = check_plan(L);
  const Host& host = Host::of(L);
  const Host::EngineCall call(Host::of(L));
  const json values = to_json(L, 2, true);
  push_json(L, told(host, "spans", [&] { return spans_json(host, box, values); }));
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
  const CostModel* cost = plan.spec.law ? nullptr : plan.spec.cost.get();
  for (const IdleStage& s : idle_stages(plan.graph, plan.schedule, cost, plan.stages)) {
    if (!s.as_told) all.push_back({{"stage", s.name}, {"reason", s.why}});
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

json info_json(const Host&, const PlanBox& box) {
  constexpr size_t kHolders = 10;
  const Plan& plan = *box.plan;
  json lanes = json::array();
  for (const Lane& lane : plan.schedule.lanes) lanes.push_back(lane.name);
  return {{"num_ops", plan.graph.num_ops()},
          {"plan_ms", to_ms(plan.plan_ns)},
          {"hash", plan.hash},
          {"stages", stages_json(plan)},
          {"without_effect", without_effect_json(plan)},
          {"peak_bytes", plan.memory.peak_bytes()},
          {"liveness_bytes", plan.memory.liveness_bytes},
          {"arena_bytes", plan.memory.arena_bytes},
          {"persistent_bytes", plan.memory.persistent_bytes},
          {"holders", peak_holders(plan.graph, plan.schedule, plan.orders, plan.memory, kHolders)},
          {"log", log_json(plan)},
          {"lanes", lanes},
          {"cost", plan.spec.cost->describe()},
          {"profile_ms", box.profile ? to_ms(box.profile->measuring_ns()) : 0.0},
          {"rehearsal_ms",
           box.profile && box.profile->in_step() ? to_ms(box.profile->in_step()->took_ns) : 0.0},
          {"num_profiled", box.profile ? box.profile->num_measured() : 0}};
}

/// Without the all-to-alls that no dW may hide under, and the dW that may hide under none.
OverlapProblem without_idle(const OverlapProblem& all) {
  OverlapProblem some;
  std::vector<size_t> kept;
  for (size_t dw = 0; dw < all.dw_ns.size(); ++dw) {
    const auto may = [dw](const std::vector<bool>& row) { return row[dw]; };
    if (!std::any_of(all.allowed.begin(), all.allowed.end(), may)) continue;
    kept.push_back(dw);
    some.dw_ns.push_back(all.dw_ns[dw]);
  }
  for (size_t a = 0; a < all.a2a_ns.size(); ++a) {
    std::vector<bool> row;
    for (const size_t dw : kept) row.push_back(all.allowed[a][dw]);
    if (std::find(row.begin(), row.end(), true) == row.end()) continue;
    some.a2a_ns.push_back(all.a2a_ns[a]);
    some.allowed.push_back(std::move(row));
  }
  return some;
}

/// What weight gradients can hide of the all-to-alls, by the plan's graph alone: Lancet's greedy
/// choice as printed, an upper bound, and the optimum where it is found soon.
json overlap_json(const Host&, const PlanBox& box) {
  constexpr size_t kMostExact = 24;  // dW
  const Plan& plan = *box.plan;
  const OverlapProblem problem = without_idle(
      dw_candidates(plan.graph, default_schedule(plan.graph), *plan.spec.cost).problem);
  const auto sum = [](const std::vector<Nanoseconds>& ns) {
    return to_ms(std::accumulate(ns.begin(), ns.end(), Nanoseconds{0}));
  };
  json out = {{"num_a2a", problem.a2a_ns.size()},
              {"num_dw", problem.dw_ns.size()},
              {"a2a_ms", sum(problem.a2a_ns)},
              {"dw_ms", sum(problem.dw_ns)},
              {"greedy_ms", to_ms(assign_greedy(problem, true).hidden_ns)},
              {"bound_ms", to_ms(overlap_bound(problem))}};
  if (problem.dw_ns.size() <= kMostExact) {
    out["exact_ms"] = to_ms(assign_exact(problem).hidden_ns);
  }
  return out;
}

/// What Lina's packing compares in the forward: by MoE layer and part, the all-to-all to the
/// experts and the experts, each alone; the means.
json micro_ops_json(const Host&, const PlanBox& box) {
  const Plan& plan = *box.plan;
  std::map<std::pair<int32_t, int32_t>, TimeSum> a2a, ffn;  // by layer and part
  for (size_t i = 0; i < plan.graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    const Op& op = plan.graph.op(id);
    if (op.phase != Phase::kForward) continue;
    const bool sends = plan.graph.def(id).collective == Collective::kAllToAll;
    if (sends && op.segment == Segment::kDispatch) {
      a2a[{op.layer, op.part}] += plan.spec.cost->op_ns(plan.graph, id);
    }
    if (op.segment == Segment::kExpert) {
      ffn[{op.layer, op.part}] += plan.spec.cost->op_ns(plan.graph, id);
    }
  }
  const auto mean_ms = [](const auto& times) {
    TimeSum all;
    for (const auto& [key, sum] : times) all += sum;
    return times.empty() ? 0.0 : all.ms() / static_cast<double>(times.size());
  };
  return {{"a2a_ms", mean_ms(a2a)}, {"ffn_ms", mean_ms(ffn)}, {"num", ffn.size()}};
}

/// A method of a plan that gives what rank 0 finds.
template <json (*kFind)(const Host&, const PlanBox&)>
int tell(lua_State* L) {
  const PlanBox& box = check_plan(L);
  const Host& host = Host::of(L);
  const Host::EngineCall call(Host::of(L));
  push_json(L, told(host, "plan", [&] { return kFind(host, box); }));
  return 1;
}

int order(lua_State* L) {
  const Plan& plan = *check_plan(L).plan;
  const LaneId lane = plan.schedule.lane(luaL_checkstring(L, 2));
  json names = json::array();
  for (const OpId op : plan.orders.lanes[lane.index()]) names.push_back(plan.graph.op(op).name);
  push_json(L, names);
  return 1;
}

int text(lua_State* L) {
  const std::string text = print(check_plan(L).plan->graph);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

}  // namespace

PlanBox& check_plan(lua_State* L) {
  return check_userdata<PlanBox>(L, 1, kPlanType);
}

json metrics_json(const Metrics& m) {
  return values_json(m);
}

void open_plan(lua_State* L) {
  static constexpr luaL_Reg kMethods[] = {{"explain", core_function<explain_plan>},
                                          {"info", core_function<tell<info_json>>},
                                          {"order", core_function<order>},
                                          {"micro_ops", core_function<tell<micro_ops_json>>},
                                          {"overlap", core_function<tell<overlap_json>>},
                                          {"run", core_function<run_plan>},
                                          {"simulate", core_function<simulate>},
                                          {"spans", core_function<spans>},
                                          {"text", core_function<text>},
                                          {"trace", core_function<trace_plan>},
                                          {nullptr, nullptr}};
  new_type<PlanBox>(L, kPlanType, kMethods);
  open_run(L);
  static constexpr luaL_Reg kFunctions[] = {{"plan", core_function<make>},
                                            {"check_model", core_function<check_model>},
                                            {"check_cluster", core_function<check_cluster>},
                                            {nullptr, nullptr}};
  luaL_setfuncs(L, kFunctions, 0);
}

}  // namespace moe::lua
