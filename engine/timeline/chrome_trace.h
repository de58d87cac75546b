// Export of timelines as a trace file for Chrome and Perfetto. The trace has one process per label
// and rank, one thread per lane, and one complete event per span, in microseconds. Arguments of the
// event are, among others, the op's kind, bytes, wait and segment (named "stage"). Each link has a
// counter, shown at the process of rank 0, in percent of the link's rate. Recorded routing, also
// called a trace, is in routing/trace.h.
#pragma once

#include <string>
#include <vector>

#include "engine/timeline/timeline.h"

namespace moe {

/// A timeline and the label of its processes, for instance "simulated" or "executed step 3".
/// Timelines with the same label follow one another on one time axis, which begins at 0.
struct LabelledTimeline {
  std::string label;
  const Timeline* timeline;
};

/// Returns the JSON text of timelines of one graph. A process is named "<label> (<provenance>) rank
/// <r>", without the provenance if the label contains it. `lane_names` is indexed by LaneId.
std::string trace_json(const Graph& graph, const std::vector<std::string>& lane_names,
                       const std::vector<LabelledTimeline>& timelines);

}  // namespace moe
