#include "engine/analysis/idle_stages.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/replay/replay.h"

namespace moe {
namespace {

/// Returns the built-in pass of this name; null: there is none.
const PassDef* built_in(std::string_view stage) {
  const std::vector<PassDef>& all = builtin_passes();
  const auto pass =
      std::find_if(all.begin(), all.end(), [&](const PassDef& p) { return p.name == stage; });
  return pass != all.end() ? &*pass : nullptr;
}

/// Whether the stage cuts transfers into parts.
bool gives_parts(std::string_view stage) {
  const PassDef* const pass = built_in(stage);
  return pass != nullptr &&
         std::find(pass->gives.begin(), pass->gives.end(), Fact::kParts) != pass->gives.end();
}

/// Sets the lane, priority or chunk size of the op back to its value before `setting`.
void undo(Schedule& schedule, const Setting& setting) {
  if (setting.what == Setting::kLane) schedule.lane_of[setting.op.index()] = LaneId(setting.before);
  if (setting.what == Setting::kPriority) schedule.set_priority(setting.op, setting.before);
  if (setting.what == Setting::kChunk) schedule.chunk_bytes[setting.op.index()] = setting.before;
}

/// Returns the schedule without the changes of `stage`, except those that a later stage replaced.
Schedule without(const Schedule& schedule, const std::string& stage) {
  Schedule less = schedule;
  const auto of_stage = [&](const auto& x) { return x.stage == stage; };
  std::erase_if(less.order_edges, of_stage);
  std::erase_if(less.holds, of_stage);
  std::erase_if(less.exclusive, of_stage);
  for (Lane& lane : less.lanes) {
    if (lane.stage == stage) lane.pick = Pick::kOrder;
  }
  constexpr size_t kWhats = Setting::kPart + 1;
  std::vector<bool> replaced(schedule.lane_of.size() * kWhats);
  for (auto set = schedule.settings.rbegin(); set != schedule.settings.rend(); ++set) {
    const size_t at = set->op.index() * kWhats + set->what;
    if (set->stage == stage && !replaced[at]) undo(less, *set);
    if (set->stage != stage) replaced[at] = true;
  }
  return less;
}

/// Simulates a step. Returns {op, chunk, begin, end} of each span, sorted.
std::vector<std::array<int64_t, 4>> times_of(const Graph& graph, const Schedule& schedule,
                                             const CostModel& cost) {
  const LaneOrders orders = lane_orders(graph, schedule);
  std::vector<std::array<int64_t, 4>> times;
  for (const Span& span : replay(replay_input(graph, schedule, orders, cost)).spans) {
    times.push_back({span.op.value, span.chunk, span.begin, span.end});
  }
  std::sort(times.begin(), times.end());
  return times;
}

/// Whether the stage only set priorities, and only of ops on lanes that ignore priorities.
bool sets_idle_priorities(const Schedule& schedule, const StageReport& report) {
  StageChanges others = report.changes;
  others.priorities = 0;
  if (report.changes.priorities == 0 || others != StageChanges()) return false;
  return std::none_of(schedule.settings.begin(), schedule.settings.end(), [&](const Setting& s) {
    const LaneId lane = schedule.lane_of[s.op.index()];
    return s.stage == report.name && s.what == Setting::kPriority &&
           (schedule.picks(lane) || exclusive_with(schedule, lane) != nullptr);
  });
}

/// Returns why a schedule pass that changed the schedule has no effect; "" if it has an effect.
std::string no_effect(const Graph& graph, const Schedule& schedule, const CostModel& cost,
                      const StageReport& report) {
  if (sets_idle_priorities(schedule, report)) {
    return "priorities only have an effect on lanes with a discipline (pick or exclusive), but "
           "these ops are on lanes that run in order";
  }
  try {
    const Schedule less = without(schedule, report.name);
    if (times_of(graph, less, cost) != times_of(graph, schedule, cost)) return "";
  } catch (const RunError&) {
    return "";  // without the stage the schedule deadlocks, so the stage has an effect
  }
  return "the simulated step is the same without it, op by op";
}

bool forbids(const std::string& stage) {
  const PassDef* const pass = built_in(stage);
  return pass != nullptr && pass->forbids;
}

/// Whether one replay with expected loads holds for all steps: no policy picks the next op of a
/// lane at run time, and no op places experts.
bool steps_are_alike(const Graph& graph, const Schedule& schedule) {
  for (const Lane& lane : schedule.lanes) {
    if (lane.pick == Pick::kPolicy) return false;
  }
  for (const OpId op : graph.op_ids()) {
    if (is(graph, op, MoeOp::kPlace)) return false;
  }
  return true;
}

}  // namespace

std::vector<IdleStage> idle_stages(const Graph& graph, const Schedule& schedule,
                                   const CostModel* cost, const std::vector<StageReport>& reports) {
  const bool timed = cost != nullptr && cost->has_times() && steps_are_alike(graph, schedule);
  std::vector<IdleStage> idle;
  for (const StageReport& report : reports) {
    const bool could_cut = !report.changed && gives_parts(report.name);
    for (const std::string& why : report.without_effect) {
      idle.push_back({report.name, why, could_cut});
    }
    if (!report.no_op_option.empty()) {
      idle.push_back({report.name, report.no_op_option + " changes nothing", could_cut, true});
    }
    const bool scheduler = report.changed && report.changes.ops == 0;
    if (!scheduler || !timed) continue;
    std::string why = no_effect(graph, schedule, *cost, report);
    if (!why.empty()) idle.push_back({report.name, std::move(why), false, forbids(report.name)});
  }
  return idle;
}

std::vector<IdleStage> idle_stages(const Plan& plan) {
  const bool one_step = plan.spec.routing == nullptr && plan.programs.empty();
  return idle_stages(plan.graph, plan.schedule, one_step ? plan.spec.cost.get() : nullptr,
                     plan.stages);
}

}  // namespace moe
