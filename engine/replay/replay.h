// The event engine, the only one: graph + schedule + durations -> timeline. An op begins when all
// that it waits for is over: data, order edges and, on a lane that runs in order, the op before it.
// A collective begins when every member has posted it and ends for all alike; on lanes with an
// arbiter it begins when the arbiter chooses it (schedule/arbiter.h), chunk by chunk. Integer time,
// ties by op id: the same input gives the same bytes.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>

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
  std::function<Bytes(OpId, int32_t rank)> bytes = nullptr;
  /// CostModel::handoff_ns.
  Nanoseconds handoff_ns = 0;
  /// Duration of one of so many equal chunks of a collective; null: an equal share of the whole's.
  std::function<Nanoseconds(OpId, int64_t chunks)> chunk_ns = nullptr;
  /// The links on which transfers meet that no arbiter keeps apart. Null, or where none can meet:
  /// each takes its duration.
  const Cluster* network = nullptr;
  /// One of so many equal chunks of a collective on these links, with network; alone it is scaled
  /// to its duration. nullopt: it takes that whatever else is on its way.
  std::function<std::optional<NetworkOp>(OpId, int64_t chunks)> transfer = nullptr;
  /// Timeline::links are kept.
  bool keep_links = false;
  /// From an arbiter's choice to the begin of what it chose: agreeing on it, and waking the lane.
  Nanoseconds pick_ns = 0;
};

/// Requires: a legal schedule (check_legal); orders that deadlock are a RunError naming the cycle,
/// a lane's policy that names no op that is ready one naming lane and stage.
Timeline replay(const ReplayInput& input);

/// What a routing gives an op on a rank (of a collective: on any); null: what the model expects.
using RoutedWorkOf = std::function<const RoutedWork*(OpId, int32_t rank)>;

/// The schedule on ranks that all do the same, with the durations and the links of a cost model;
/// or, with `routed`, on so many ranks that differ by it. Keeps references to the first four and to
/// what `routed` returns.
ReplayInput replay_input(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
                         const CostModel& cost, RoutedWorkOf routed = nullptr,
                         int32_t num_ranks = 1);

/// max(busiest lane, longest path of data and mutation edges): no schedule of these lanes is
/// shorter.
struct LowerBound {
  Nanoseconds busiest_lane_ns = 0;
  LaneId busiest_lane;
  Nanoseconds critical_path_ns = 0;
  Nanoseconds ns() const { return std::max(busiest_lane_ns, critical_path_ns); }
};
LowerBound lower_bound(const Graph& graph, const Schedule& schedule,
                       const std::function<Nanoseconds(OpId)>& duration_ns);

}  // namespace moe
