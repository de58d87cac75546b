#include "engine/passes/idle_stages.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/passes/pipeline.h"

namespace moe {
namespace {

/// Passes that cut transfers into parts.
constexpr std::array<std::string_view, 4> kCutters = {"capacity_pipeline", "pipemoe", "micro_ops",
                                                      "partition"};

bool has_all_to_all(const Graph& graph) {
  return std::any_of(graph.ops().begin(), graph.ops().end(), [&graph](const Op& op) {
    return graph.def(op).collective == Collective::kAllToAll;
  });
}

std::string reason(const Graph& graph, const Schedule& schedule, const Stage& stage) {
  const auto said = std::find_if(schedule.log.rbegin(), schedule.log.rend(),
                                 [&](const Decision& d) { return d.stage == stage.name; });
  if (said != schedule.log.rend()) return said->why;
  if (!has_all_to_all(graph)) return "the graph has no all-to-all, so no MoE layer";
  for (const auto& [name, value] : stage.options) {
    const double* number = std::get_if<double>(&value);
    if (name == "degree" && number != nullptr && *number == 1) return "degree 1 cuts nothing";
  }
  if (kind_of(stage) == StageKind::kSchedule) return "it adds no order to what there is already";
  return "no op is one that it would change";
}

}  // namespace

std::vector<IdleStage> idle_stages(const Graph& graph, const Schedule& schedule,
                                   const std::vector<Stage>& stages,
                                   const std::vector<StageReport>& reports) {
  std::vector<IdleStage> idle;
  for (const StageReport& report : reports) {
    if (report.changed) continue;
    const auto stage = std::find_if(stages.begin(), stages.end(),
                                    [&](const Stage& s) { return s.name == report.name; });
    MOE_CHECK(stage != stages.end(), "a report of stage '{}', which the plan has not", report.name);
    const bool cuts = std::find(kCutters.begin(), kCutters.end(), report.name) != kCutters.end();
    idle.push_back({report.name, reason(graph, schedule, *stage), cuts});
  }
  return idle;
}

}  // namespace moe
