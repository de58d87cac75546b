// The event engine, the only one in the project: graph + schedule + durations -> timeline. An op
// begins when everything that it waits for is over: its data, its order edges and, on a lane that
// runs in order, the op before it. A collective begins in each of its groups (base/group.h) when
// every member has posted it, and ends at the same time for all members of the group. On lanes with
// an arbiter, it begins in all groups when all ranks have posted it and the arbiter chooses it
// (schedule/arbiter.h), chunk by chunk. Time is an integer and ties are ordered by op id: equal
// input gives equal output. Durations come from cost/, shared links from network/.
#pragma once

#include <functional>
#include <optional>

#include "engine/cost/cost_model.h"
#include "engine/schedule/schedule.h"
#include "engine/timeline/metrics.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// What replay() needs; the referenced objects must outlive it.
struct ReplayInput {
  const Graph& graph;
  const Schedule& schedule;
  const LaneOrders& orders;
  /// Number of ranks to simulate of each pipeline rank: all ranks of the graph, or 1, which stands
  /// for all ranks and all groups, where all ranks do the same.
  int32_t num_ranks = 1;
  /// Number of pipeline ranks; rank r of pipeline rank p is number p * num_ranks + r in a timeline.
  int32_t pipeline_ranks = 1;
  /// Duration of an op on a rank. A collective takes the largest duration over its group's ranks.
  std::function<Nanoseconds(OpId, int32_t rank)> duration_ns;
  /// For lower_bound(): the time for which an op keeps a rank's lane or the links behind it busy,
  /// also with what other groups of the same collective send over these; null: duration_ns.
  std::function<Nanoseconds(OpId, int32_t rank)> busy_ns = nullptr;
  /// Bytes that a rank sends in an op, for Span::bytes; null means 0.
  std::function<Bytes(OpId, int32_t rank)> bytes = nullptr;
  /// Time to wake a lane that waited for an op of another lane (CostModel::handoff_ns).
  Nanoseconds handoff_ns = 0;
  /// Duration of one of `chunks` equal chunks of a collective in the group of a rank; null: an
  /// equal part of the whole.
  std::function<Nanoseconds(OpId, int32_t rank, int64_t chunks)> chunk_ns = nullptr;
  /// The cluster on whose links transfers may overlap, if no arbiter prevents it. If it is null, or
  /// if transfers cannot overlap, each transfer takes the time of duration_ns or chunk_ns.
  const Cluster* network = nullptr;
  /// Returns one of `chunks` equal chunks of a collective in the group of a rank, or in all groups
  /// if num_ranks is 1, as a transfer on the links of `network`. Alone on its links the transfer
  /// takes the time of duration_ns or chunk_ns. nullopt: the op takes that time whatever else is in
  /// progress.
  std::function<std::optional<NetworkOp>(OpId, int32_t rank, int64_t chunks)> transfer = nullptr;
  /// Whether Timeline::links is recorded.
  bool keep_links = false;
  /// The host's time to launch an op on each rank, in the order of the program; null: no host. An
  /// op begins no earlier than its launch. host_waits: whether the host then waits for its end.
  std::function<Nanoseconds(OpId)> host_ns = nullptr;
  std::function<bool(OpId)> host_waits = nullptr;
  /// Time from an arbiter's choice to the begin of the op (agreeing on it, waking the lane).
  Nanoseconds pick_ns = 0;
};

/// Requires: a legal schedule (check_legal). Throws RunError naming the cycle when the orders
/// deadlock, naming lane and stage when a lane's pick function returns no op that is ready, and
/// naming the op when a hold keeps it back forever. Throws UserError when an op or the step is too
/// long (kLongestNs).
Timeline replay(const ReplayInput& input);

/// Returns the work that a routing gives an op on a rank (for a collective: in the rank's group);
/// null means the work that the model expects.
using RoutedWorkOf = std::function<const RoutedWork*(OpId, int32_t rank)>;

/// Returns the input for replaying a schedule with the durations and links of a cost model. Without
/// `routed` all ranks do the same; with it, `num_ranks` ranks differ by the work that `routed`
/// returns. Keeps references to the first four arguments and to what `routed` returns.
ReplayInput replay_input(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
                         const CostModel& cost, RoutedWorkOf routed = nullptr,
                         int32_t num_ranks = 1);

/// Returns the LowerBound of the ops on their lanes, on the rank on which it is largest.
LowerBound lower_bound(const ReplayInput& input);

/// Returns the groups in which the collective `op` runs when `num_ranks` ranks are simulated: those
/// of the op, or one group if the simulated ranks are not all ranks of the graph; for a transfer
/// between pipeline ranks each rank alone.
Group simulated_groups(const Graph& graph, OpId op, int64_t num_ranks);

}  // namespace moe
