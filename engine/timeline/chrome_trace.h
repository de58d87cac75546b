// Export of timelines as a trace file for Chrome and Perfetto (the Trace Event Format). The trace
// has one process per label and rank, one thread per lane, and one complete event per span, in
// microseconds. Arguments of the event are, among others, the op's kind, bytes, wait, segment
// (named "stage") and what it waited for. A flow leads from the last span of a collective to each
// op of the rank that reads what the collective brought, also through ops that only view it. Each
// link has a counter, shown at the process of rank 0, in percent of the link's rate, and each rank
// one of the memory in use. Recorded routing, also called a trace, is in routing/trace.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/timeline/timeline.h"

namespace moe {

/// A timeline and the label of its processes, for instance "simulated" or "executed step 3".
/// Timelines with the same label follow one another on one time axis, which begins at 0.
struct LabelledTimeline {
  std::string label;
  const Timeline* timeline;
  /// Returns what a span of the timeline waited for ("" if nothing is to be said); null: unknown.
  std::function<std::string(const Span&)> cause = nullptr;
  /// Returns the memory in use on a rank, ascending by time; null: unknown.
  std::function<std::vector<MemoryInUse>(int32_t rank)> memory = nullptr;
};

/// Viewers read traces up to about this size quickly.
constexpr size_t kMostTraceBytes = 19'000'000;

/// Returns the JSON text of timelines of one graph. A process is named "<label> (<provenance>) rank
/// <r>", without the provenance if the label contains it. `lane_names` is indexed by LaneId. The
/// text has at most `most_bytes` bytes, shared evenly among the labels, and about 1 KB: of a label
/// whose events do not fit, the last ranks are left out, of a single rank the last spans, and links
/// that take more than a quarter. What is left out is named in otherData.left_out.
std::string trace_json(const Graph& graph, const std::vector<std::string>& lane_names,
                       const std::vector<LabelledTimeline>& timelines,
                       size_t most_bytes = kMostTraceBytes);

}  // namespace moe
