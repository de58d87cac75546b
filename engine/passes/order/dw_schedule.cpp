#include "engine/passes/order/dw_schedule.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/passes/order/growing_order.h"
#include "engine/passes/pass.h"
#include "engine/replay/replay.h"

namespace moe {
namespace {

/// Orders a dW after what its all-to-all waits for and before what waits for the all-to-all.
class Binder {
 public:
  Binder(const Graph& graph, const std::vector<OpId>& all_to_alls, Schedule& schedule,
         const PassContext& context)
      : graph_(graph),
        all_to_alls_(all_to_alls),
        schedule_(schedule),
        context_(context),
        deps_(dependencies(graph)),
        reach_(graph, deps_, edges_of(schedule)),
        order_(graph, schedule) {}

  /// Returns false when the order edges so far already order the all-to-all and the dW.
  bool bind(size_t number, OpId dw) {
    const OpId a2a = all_to_alls_[number];
    if (order_.path(a2a, dw) || order_.path(dw, a2a)) return false;
    const std::string why = "hides under " + graph_.op(a2a).name;
    for (const OpId p : deps_.preds[a2a.index()]) before(p, dw, why);
    for (const OpId s : deps_.succs[a2a.index()]) before(dw, s, why);
    for (const OpId s : deps_.succs[dw.index()]) hold_back(s, number);
    return true;
  }

 private:
  /// Makes a collective that reads the gradient run after all-to-all `number`, so that it does not
  /// delay this all-to-all on a lane that both share. The same holds for the later all-to-alls up
  /// to the first that depends on one of these (the other parts of a pipeline).
  void hold_back(OpId collective, size_t number) {
    for (size_t i = number; i < all_to_alls_.size(); ++i) {
      const OpId a2a = all_to_alls_[i];
      for (size_t n = number; n < i; ++n) {
        if (reach_.reaches(all_to_alls_[n], a2a)) return;
      }
      const bool shared = schedule_.lane_of[a2a.index()] == schedule_.lane_of[collective.index()];
      if (shared && !order_.path(collective, a2a)) {
        before(a2a, collective, "after what hides its gradient");
      }
    }
  }

  void before(OpId from, OpId to, const std::string& why) {
    schedule_.before(from, to, context_.stage, why);
    order_.add(from, to);
  }

  const Graph& graph_;
  const std::vector<OpId>& all_to_alls_;
  Schedule& schedule_;
  const PassContext& context_;
  Dependencies deps_;
  Reachability reach_;  // computed before this stage adds edges
  GrowingOrder order_;
};

Schedule assign(const Graph& graph, Schedule schedule, const PassContext& context,
                const DwCandidates& found, bool overshoot, std::vector<Decision>& log) {
  Binder binder(graph, found.a2a, schedule, context);
  const OverlapAssignment chosen = assign_greedy(
      found.problem, overshoot,
      [&](const OverlapPick& pick) { return binder.bind(pick.a2a, found.dw[pick.dw]); });
  for (const OverlapPick& pick : chosen.picks) {
    log.push_back(
        {graph.op(found.dw[pick.dw]).name, context.stage,
         fmt::format("under {}: {:.3f} ms of it are not hidden yet, this dW takes {:.3f} ms",
                     graph.op(found.a2a[pick.a2a]).name, to_ms(pick.uncovered_ns),
                     to_ms(found.problem.dw_ns[pick.dw]))});
  }
  return schedule;
}

/// Returns the reason why no dW was assigned. `undone`: what is said of an assignment before.
std::string nothing_assigned(const DwCandidates& found, const std::string& undone) {
  if (found.a2a.empty()) return "no rows are exchanged: the graph has no all-to-all";
  if (found.dw.empty()) return "the graph has no weight gradients";
  const OverlapProblem& p = found.problem;
  bool allowed = false, takes_time = false;
  for (size_t a = 0; a < found.a2a.size(); ++a) {
    for (size_t dw = 0; dw < found.dw.size(); ++dw) {
      allowed |= p.allowed[a][dw];
      takes_time |= p.allowed[a][dw] && p.a2a_ns[a] > 0 && p.dw_ns[dw] > 0;
    }
  }
  if (!allowed) {
    return "no weight gradient may run during an all-to-all: data dependencies and order edges of "
           "earlier stages forbid it";
  }
  if (!takes_time) return "all-to-alls, or the weight gradients beside them, take no time";
  return undone + (undone.empty() ? "" : "; ") +
         "without overshoot none is assigned: each takes at least twice the time of the "
         "all-to-alls that it may run under";
}

Nanoseconds step_ns(const Graph& graph, const Schedule& schedule, const CostModel& cost) {
  const LaneOrders orders = lane_orders(graph, schedule);
  const Timeline timeline = replay(replay_input(graph, schedule, orders, cost));
  Nanoseconds end = 0;
  for (const Span& span : timeline.spans) end = std::max(end, span.end);
  return end;
}

}  // namespace

DwCandidates dw_candidates(const Graph& graph, const Schedule& schedule, const CostModel& cost) {
  DwCandidates found;
  for (const OpId op : graph.op_ids()) {
    if (graph.def(op).collective == Collective::kAllToAll) found.a2a.push_back(op);
    if (graph.op(op).is_dw) found.dw.push_back(op);
  }
  for (const OpId op : found.a2a) found.problem.a2a_ns.push_back(cost.op_ns(graph, op));
  for (const OpId op : found.dw) found.problem.dw_ns.push_back(cost.op_ns(graph, op));
  TimeSum all;
  for (const Nanoseconds ns : found.problem.a2a_ns) all += ns;
  for (const Nanoseconds ns : found.problem.dw_ns) all += ns;
  all.ns([] { return "all all-to-alls and weight gradients, one after the other,"; });
  const Reachability reach(graph, dependencies(graph), edges_of(schedule));
  for (const OpId a : found.a2a) {
    std::vector<bool>& allowed = found.problem.allowed.emplace_back();
    for (const OpId dw : found.dw) allowed.push_back(reach.independent(a, dw));
  }
  return found;
}

/// Lancet's dW scheduling (MLSys 2024, algorithm 1); dw_schedule.h describes the problem.
Schedule dw_schedule(const Graph& graph, Schedule schedule, const PassContext& context) {
  const DwCandidates found = dw_candidates(graph, schedule, context.cost);
  const bool undo = std::get<std::string>(context.options.at("if_slower")) == "undo";
  const bool allow = std::get<std::string>(context.options.at("overshoot")) == "allow";
  const Nanoseconds before = undo ? step_ns(graph, schedule, context.cost) : 0;
  std::string undone;
  for (const bool overshoot : {true, false}) {
    if (overshoot && !allow) continue;
    std::vector<Decision> log;
    Schedule made = assign(graph, schedule, context, found, overshoot, log);
    const Nanoseconds after = undo ? step_ns(graph, made, context.cost) : 0;
    if (after <= before) {
      context.log->insert(context.log->end(), log.begin(), log.end());
      if (log.empty()) context.skip(nothing_assigned(found, undone));
      return made;
    }
    undone =
        fmt::format("undone ({} overshoot): {:.3f} ms per step, {:.3f} ms without the assignment",
                    overshoot ? "with" : "without", to_ms(after), to_ms(before));
    if (overshoot) context.log->push_back({context.stage, context.stage, undone});
  }
  context.skip(undone);
  return schedule;
}

}  // namespace moe
