// core.pipemoe_degree, _time and _fit: PipeMoE's choice of a degree, and the times and fitted lines
// behind it.
#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/host.h"
#include "bindings/plan_spec.h"
#include "engine/passes/capacity/pipemoe_fit.h"

namespace moe::lua {
namespace {

using nlohmann::json;

DegreeObjective objective_of(const Fields& fields) {
  return fields.text("objective") == "step" ? DegreeObjective::kStep : DegreeObjective::kForward;
}

// Reads the fields of PipeMoE's straight lines: alpha_a, beta_a, alpha_e, beta_e, n_d and n_e, and
// those of alpha_b, beta_b and cut_s that are given.
DegreeProblem problem_of(const Fields& fields, const char* who) {
  LayerModel layer;
  layer.alpha_a = fields.number("alpha_a"), layer.beta_a = fields.number("beta_a");
  layer.alpha_e = fields.number("alpha_e"), layer.beta_e = fields.number("beta_e");
  layer.n_d = fields.number("n_d"), layer.n_e = fields.number("n_e");
  layer.cut_s = fields.number("cut_s", 0);
  if (fields.has("alpha_b")) layer.alpha_b = fields.number("alpha_b");
  if (fields.has("beta_b")) layer.beta_b = fields.number("beta_b");
  check(layer, who);
  return {.ways = times_of(layer, objective_of(fields)), .cut_s = layer.cut_s};
}

// ({ max_degree, allowed, method, objective, and alpha_a etc. as problem_of reads them }) -> the
// degree with the least time that `method` finds, { degree, time_s }
int degree(lua_State* L) {
  constexpr const char* kWho = "moe.pipemoe.degree";
  const json values = to_json(L, 1);
  const Fields fields(values, kWho);
  DegreeProblem problem = problem_of(fields, kWho);
  problem.max_degree = fields.integer("max_degree");
  if (fields.has("allowed")) {
    problem.allowed = values.at("allowed").get<std::vector<int64_t>>();
  }
  const DegreeChoice choice = choose_degree(problem, fields.text("method"), kWho);
  push_json(L, {{"degree", choice.degree}, {"time_s", choice.time_s}});
  return 1;
}

// ({ degree, by, objective, and alpha_a etc. as problem_of reads them }) -> the layer's time at
// this degree in seconds. by: "closed_form", or else the recurrence over the parts.
int time(lua_State* L) {
  constexpr const char* kWho = "moe.pipemoe.time";
  const json values = to_json(L, 1);
  const Fields fields(values, kWho);
  const DegreeProblem problem = problem_of(fields, kWho);
  const int64_t degree = fields.integer("degree");
  double seconds = 0;
  if (fields.text("by") == "closed_form") {
    seconds = time_of(problem, degree);
  } else {
    seconds = degree > 1 ? problem.cut_s : 0;
    for (const LayerTimes& way : problem.ways) seconds += layer_time_by_recurrence(way, degree);
  }
  lua_pushnumber(L, seconds);
  return 1;
}

json error_json(const FitError& error) {
  return {{"median", error.median}, {"worst", error.worst}, {"r2", error.r2}};
}

json fit_json(const LayerFit& fit, int64_t capacity) {
  const LayerModel& m = fit.model;
  json lines = {{"alpha_a", m.alpha_a}, {"beta_a", m.beta_a}, {"n_d", m.n_d},
                {"alpha_e", m.alpha_e}, {"beta_e", m.beta_e}, {"n_e", m.n_e},
                {"cut_s", m.cut_s}};
  json error = {{"transfer", error_json(fit.transfer)}, {"experts", error_json(fit.experts)}};
  if (fit.backward) {
    lines["alpha_b"] = *m.alpha_b, lines["beta_b"] = *m.beta_b;
    error["backward"] = error_json(*fit.backward);
  }
  return {{"lines", lines}, {"error", error}, {"degrees", fit.degrees}, {"capacity", capacity}};
}

// (specification as for core.plan, objective) -> { lines, error, degrees, capacity }: PipeMoE's
// lines, fitted to the plan's cost model for the first MoE layer
int fit(lua_State* L) {
  Host& host = Host::of(L);
  const std::string objective = luaL_checkstring(L, 2);
  host.end_loading();
  const Host::EngineCall call(host);
  PlanHandle handle;
  const PlanSpec spec = plan_spec_of(L, 1, handle);
  const Graph& graph = spec.model->forward;
  const std::vector<CapacityChain> chains = capacity_chains(graph, "moe.pipemoe.fit");
  if (chains.empty()) {
    throw user_error(
        "moe.pipemoe.fit: the model has no all-to-all, with {} MoE layers on {} ranks; give at "
        "least one MoE layer and 2 ranks",
        spec.model->num_moe_layers(), spec.num_ranks);
  }
  const int64_t capacity = chains[0].capacity;
  if (capacity < 2) {
    throw user_error(
        "moe.pipemoe.fit: an expert has a capacity of 1 slot per rank, which cannot be cut; give "
        "more tokens or a larger capacity_factor");
  }
  const LayerFit fitted =
      fit_layer(graph, chains[0], *spec.cost,
                objective == "step" ? DegreeObjective::kStep : DegreeObjective::kForward, capacity);
  push_json(L, fit_json(fitted, capacity));
  return 1;
}

}  // namespace

void open_pipemoe(lua_State* L) {
  set_functions(L, {{"pipemoe_degree", core_function<with_effect<degree>>},
                    {"pipemoe_fit", core_function<fit>},
                    {"pipemoe_time", core_function<with_effect<time>>}});
}

}  // namespace moe::lua
