// What results say of a plan's steps beside their metrics: the step that stands for a run, where
// its forward ends, and what ops take alone. Not here: why a step takes what it takes (explain.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/base/limits.h"
#include "engine/plan.h"
#include "engine/timeline/metrics.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// The step of the median makespan; of an even number the shorter of the middle two, of equals the
/// earlier one. Requires: at least one.
size_t median_step(const std::vector<Metrics>& steps);

/// When the last forward op ends on any rank; 0 without one.
Nanoseconds forward_end_ns(const Graph& graph, const Timeline& timeline);

/// Time of a rank's ops, each alone: collectives by kind, the rest by segment.
std::map<std::string, TimeSum> ops_alone(const Graph& graph, const CostModel& cost);

/// What Lina's packing compares in the forward: the all-to-all to the experts and the experts of an
/// MoE layer's part, each alone.
struct MicroOpTimes {
  double a2a_ms = 0, ffn_ms = 0;  // means over layers and parts
  size_t num = 0;                 // layers and parts
};
MicroOpTimes micro_op_times(const Graph& graph, const CostModel& cost);

}  // namespace moe
