// plan:explain: the engine's explanation why communication is exposed and what would help, as
// tables.
#include <algorithm>

#include "bindings/host/host.h"
#include "bindings/host/job.h"
#include "bindings/host/userdata.h"
#include "bindings/run.h"
#include "engine/analysis/findings.h"
#include "engine/analysis/idle_stages.h"
#include "engine/sim/step_replay.h"

namespace moe::lua {
namespace {

using nlohmann::json;

/// Converts an explanation to tables. Times are means over ranks, in ms.
class Explainer {
 public:
  Explainer(const Plan& plan, const StepReplay& step, Explanation explanation)
      : plan_(plan),
        step_(step),
        explanation_(std::move(explanation)),
        ranks_(static_cast<double>(explanation_.exposed_ns.size())) {}

  json all() const {
    Nanoseconds exposed = 0;
    for (const Nanoseconds ns : explanation_.exposed_ns) exposed += ns;
    json exposures = json::array();
    for (const Exposure& e : explanation_.exposures) exposures.push_back(exposure(e));
    json idle = json::array();
    const std::vector<IdleStage> stages = idle_stages(plan_);
    for (const IdleStage& s : stages) idle.push_back({{"stage", s.name}, {"why", s.why}});
    return {{"iteration_ms", to_ms(explanation_.makespan_ns)},
            {"exposed_ms", mean(exposed)},
            {"bound", bound()},
            {"causes", causes()},
            {"exposures", std::move(exposures)},
            {"collectives", collectives()},
            {"findings", found(stages)},
            {"idle", std::move(idle)}};
  }

 private:
  double mean(Nanoseconds ns) const { return to_ms(ns) / ranks_; }
  const std::string& name(OpId op) const { return plan_.graph.op(op).name; }

  json exposure(const Exposure& e) const {
    json out = {{"op", name(e.op)},
                {"cause", name_of(e.cause)},
                {"why", cause_text(plan_.graph, plan_.schedule, e)},
                {"ms", mean(e.ns)}};
    if (e.from.valid()) out["from"] = name(e.from);
    if (e.to.valid()) out["to"] = name(e.to);
    if (!e.stage.empty()) out["stage"] = e.stage;
    if (e.late_rank >= 0) out["late_rank"] = e.late_rank;
    return out;
  }

  json bound() const {
    const LowerBound& b = explanation_.bound;
    const bool lane = b.busiest_lane_ns >= b.critical_path_ns && b.busiest_lane.valid();
    const std::string by =
        lane ? fmt::format("lane '{}'", plan_.schedule.lanes[b.busiest_lane.index()].name)
             : "the critical path";
    return {{"ms", to_ms(b.ns())},
            {"by", by},
            {"busiest_lane_ms", to_ms(b.busiest_lane_ns)},
            {"critical_path_ms", to_ms(b.critical_path_ns)},
            {"distance_ms", to_ms(explanation_.makespan_ns - b.ns())}};
  }

  /// Returns the exposed time of each cause, the longest first.
  json causes() const {
    std::vector<std::pair<Nanoseconds, std::string>> sums;
    for (const Exposure& e : explanation_.exposures) {
      const std::string cause = name_of(e.cause);
      const auto known = std::find_if(sums.begin(), sums.end(),
                                      [&](const auto& sum) { return sum.second == cause; });
      if (known == sums.end()) {
        sums.emplace_back(e.ns, cause);
      } else {
        known->first += e.ns;
      }
    }
    std::stable_sort(sums.begin(), sums.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    json list = json::array();
    for (const auto& [ns, cause] : sums) list.push_back({{"cause", cause}, {"ms", mean(ns)}});
    return list;
  }

  json collectives() const {
    json list = json::array();
    for (const CollectiveShare& c : explanation_.collectives) {
      json hidden_by = json::array(), why = json::array(), delays = json::array();
      for (const auto& [op, ns] : c.hidden_by) {
        hidden_by.push_back({{"op", name(op)}, {"ms", mean(ns)}});
      }
      for (const Exposure& e : explanation_.exposures) {
        if (e.op == c.op) why.push_back(exposure(e));
      }
      for (const Exposure& e : c.delays) delays.push_back(exposure(e));
      list.push_back({{"op", name(c.op)},
                      {"kind", plan_.graph.def(c.op).name},
                      {"bytes", static_cast<double>(c.bytes) / ranks_},
                      {"alone_ms", to_ms(c.alone_ns)},
                      {"waited_ms", mean(c.waited_ns)},
                      {"transfer_ms", mean(c.transfer_ns)},
                      {"hidden_ms", mean(c.hidden_ns)},
                      {"exposed_ms", mean(c.exposed_ns)},
                      {"hidden_by", std::move(hidden_by)},
                      {"exposed_by", std::move(why)},
                      {"delays", std::move(delays)}});
      const std::string algorithm = plan_.spec.cost->algorithm(plan_.graph, c.op);
      if (!algorithm.empty()) list.back()["algorithm"] = algorithm;
    }
    return list;
  }

  json found(const std::vector<IdleStage>& idle) const {
    const MakeReplayInput make_input = [this](const Schedule& schedule, const LaneOrders& orders) {
      return replay_input(plan_.graph, schedule, orders, *plan_.spec.cost, step_.routed_work(),
                          step_.input().num_ranks);
    };
    json list = json::array();
    for (const Finding& f : findings({.graph = plan_.graph,
                            .schedule = plan_.schedule,
                            .explanation = explanation_,
                            .make_input = make_input,
                            .idle = idle})) {
      json one = exposure(f.exposure);
      one["ms"] = mean(f.exposed_ns);
      one["advice"] = f.advice;
      one["worth_ms"] = to_ms(f.worth_ns);
      if (f.gain_ns) one["gain_ms"] = to_ms(*f.gain_ns);
      list.push_back(std::move(one));
    }
    return list;
  }

  const Plan& plan_;
  const StepReplay& step_;
  const Explanation explanation_;
  const double ranks_;
};

// The most ops of a step that is explained: every pair of them is looked at.
constexpr size_t kMostOps = 40'000;

json explanation_json(lua_State* L, const PlanHandle& handle) {
  if (const size_t ops = handle.plan->graph.num_ops(); ops > kMostOps) {
    const int64_t micros = handle.plan->spec.model->micro_batches;
    throw user_error(
        "explain: the step has {} ops in {} micro-batches, but a step of at most {} ops can be "
        "explained; micro-batches between the first and the last are alike: give "
        "grid.micro_batches = 3{}",
        ops, micros, kMostOps, micros <= 3 ? ", and fewer layers" : "");
  }
  const auto& [step, timeline] = step_given(L, 2, handle, "explain");
  StepReplay replay(*handle.plan, placements_of(Host::of(L), handle));
  replay.set_step(0);
  // The placement of a step is made from that of the step before, so all earlier steps are
  // replayed.
  for (int64_t s = 1; s < step - 1 && !replay.placements().empty(); ++s) replay.set_step(s);
  if (step > 1) replay.set_step(step - 1);
  return Explainer(*handle.plan, replay, explain(replay.input(), timeline)).all();
}

}  // namespace

int explain_plan(lua_State* L) {
  const PlanHandle& handle = check_plan(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  const Host::EngineCall in_engine(Host::of(L));
  push_json(
      L, broadcast_from_root(Host::of(L), "explain", [&] { return explanation_json(L, handle); }));
  return 1;
}

}  // namespace moe::lua
