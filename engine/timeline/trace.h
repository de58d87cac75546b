// Chrome / Perfetto trace export: one process a rank, one thread a lane, complete events in
// microseconds with op, bytes, wait and stage as arguments.
#pragma once

#include <string>
#include <vector>

#include "engine/timeline/timeline.h"

namespace moe {

/// JSON text of one or more timelines of one graph, each under its own label ("simulated",
/// "executed step 3"), laid out one after the other on the time axis of its own processes.
struct LabelledTimeline {
  std::string label;
  const Timeline* timeline;
};
std::string trace_json(const Graph& graph, const std::vector<std::string>& lane_names,
                       const std::vector<LabelledTimeline>& timelines);

}  // namespace moe
