// plan:trace: the timelines of a plan as the text of a trace file.
#include <memory>

#include "bindings/host/host.h"
#include "bindings/host/job.h"
#include "bindings/run.h"
#include "engine/analysis/memory_track.h"
#include "engine/analysis/wait_causes.h"
#include "engine/timeline/chrome_trace.h"

namespace moe::lua {

int trace_plan(lua_State* L) {
  const PlanHandle& handle = check_plan(L);
  const Plan& plan = *handle.plan;
  luaL_checktype(L, 2, LUA_TTABLE);
  const Host::EngineCall in_engine(Host::of(L));
  if (!is_root(Host::of(L))) {  // only rank 0 writes traces
    lua_pushliteral(L, "");
    return 1;
  }
  std::vector<LabelledTimeline> all;
  for (size_t i = 1; i <= lua_objlen(L, 2); ++i) {
    lua_rawgeti(L, 2, static_cast<int>(i));
    const auto& [step, timeline] = step_given(L, lua_gettop(L), handle, "trace");
    const bool simulated = timeline.provenance == Provenance::kSimulated;
    const auto causes = std::make_shared<WaitCauses>(plan.graph, plan.schedule, timeline);
    const auto memory = std::make_shared<MemoryTrack>(plan, timeline);
    all.push_back({simulated ? "simulated" : fmt::format("executed step {}", step), &timeline,
                   [causes](const Span& span) { return causes->of(span); },
                   [memory](int32_t rank) { return memory->of(rank); }});
  }
  std::vector<std::string> lanes;
  for (const Lane& lane : plan.schedule.lanes) lanes.push_back(lane.name);
  const std::string text = trace_json(plan.graph, lanes, all);
  push_text(L, text);
  return 1;
}

}  // namespace moe::lua
