// Chrome / Perfetto trace export: one process a label and rank, one thread per lane, complete
// events in microseconds with op, bytes, wait and stage as arguments; one counter per link at the
// process of rank 0, in percent of its rate.
#pragma once

#include <string>
#include <vector>

#include "engine/timeline/timeline.h"

namespace moe {

/// A timeline and the label of its processes: "simulated", "executed step 3". Timelines with the
/// same label follow one another on one time axis; each label's axis begins at 0.
struct LabelledTimeline {
  std::string label;
  const Timeline* timeline;
};

/// JSON text of timelines of one graph. A process is named "<label> (<provenance>) rank <r>", the
/// provenance only where the label does not say it.
/// lane_names: by LaneId.
std::string trace_json(const Graph& graph, const std::vector<std::string>& lane_names,
                       const std::vector<LabelledTimeline>& timelines);

}  // namespace moe
