// The event engine, the only one: graph + lane orders + durations -> timeline. A lane runs its ops
// in order; an op begins at the latest end of its lane predecessor and its waits; a collective
// begins when every member has posted it and ends for all alike. Integer time, ties by op id: the
// same input gives the same bytes.
#pragma once

#include <algorithm>
#include <functional>

#include "engine/cost/cost_model.h"
#include "engine/schedule/schedule.h"
#include "engine/timeline/timeline.h"

namespace moe {

struct ReplayInput {
  const Graph& graph;
  const Schedule& schedule;
  const LaneOrders& orders;
  /// Ranks to simulate. 1 stands for all of them when they do the same.
  int32_t num_ranks = 1;
  /// Duration of an op on a rank. For a collective the largest over ranks counts.
  std::function<Nanoseconds(OpId, int32_t rank)> duration_ns;
  /// What a rank sends in an op, for the spans; null: nothing.
  std::function<Bytes(OpId)> bytes = nullptr;
  /// CostModel::handoff_ns.
  Nanoseconds handoff_ns = 0;
};

/// Requires: legal orders (check_legal); orders that deadlock are a RunError naming the cycle.
Timeline replay(const ReplayInput& input);

/// max(busiest lane, longest path of data and mutation edges): no schedule of these lanes is
/// shorter.
struct LowerBound {
  Nanoseconds busiest_lane_ns = 0;
  Nanoseconds critical_path_ns = 0;
  Nanoseconds ns() const { return std::max(busiest_lane_ns, critical_path_ns); }
};
LowerBound lower_bound(const Graph& graph, const Schedule& schedule,
                       const std::function<Nanoseconds(OpId)>& duration_ns);

}  // namespace moe
