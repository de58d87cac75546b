// What each span of a timeline waited for: of all that must be over before it begins, what was over
// last. Why communication is exposed, and what would help, is in explain.h.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/schedule/schedule.h"
#include "engine/timeline/timeline.h"

namespace moe {

class WaitCauses {
 public:
  /// Keeps references to all arguments.
  WaitCauses(const Graph& graph, const Schedule& schedule, const Timeline& timeline);
  /// Returns what the span, one of the timeline's, waited for last: "data of b1.moe.a2a_1", "order
  /// edge from b1.ex.fc1 (stage dw_schedule)", "lane comm, busy with b2.moe.a2a_1", "rank 3, which
  /// posted last", or "the choice of the next op"; "" if it began the step, or waited only for data
  /// of the op before it on its lane.
  std::string of(const Span& span) const;

 private:
  struct Posted {
    Nanoseconds last = 0;  // the last post of the ranks that must post before this one begins
    int32_t rank = 0;
  };
  size_t at(OpId op, int32_t rank) const {
    return op.index() * num_ranks_ + static_cast<size_t>(rank);
  }
  /// Takes note of the span's post, for all ranks that wait for it.
  void post(const Span& span);
  const Span* before_on(LaneId lane, const Span& span) const;
  std::string before_begin(const Span& span) const;
  std::string before_post(const Span& span) const;

  const Graph& graph_;
  const Schedule& schedule_;
  const size_t num_ranks_;
  const Dependencies deps_;
  std::vector<std::vector<const OrderEdge*>> edges_into_;  // indexed by op
  std::vector<std::vector<LaneId>> arbitrated_;    // per lane: all lanes of its arbiter, or empty
  std::vector<std::vector<const Span*>> on_lane_;  // per rank and lane, sorted by begin
  std::vector<Nanoseconds> ends_;                  // indexed by at(op, rank)
  std::vector<Posted> posted_;                     // indexed by at(op, rank)
};

}  // namespace moe
