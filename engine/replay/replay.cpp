#include "engine/replay/replay.h"

#include <tuple>
#include <vector>

#include "engine/base/errors.h"
#include "engine/replay/events.h"
#include "engine/schedule/precedence.h"

namespace moe {
namespace {

/// The lane of every op, from the orders. Every op stands in them once.
std::vector<LaneId> lanes_of(const ReplayInput& input) {
  std::vector<LaneId> lanes(input.graph.num_ops());
  size_t placed = 0;
  for (size_t lane = 0; lane < input.orders.lanes.size(); ++lane) {
    for (const OpId op : input.orders.lanes[lane]) {
      MOE_CHECK(!lanes[op.index()].valid(), "op '{}' twice in the lane orders",
                input.graph.op(op).name);
      lanes[op.index()] = LaneId(static_cast<int64_t>(lane));
      ++placed;
    }
  }
  MOE_CHECK(placed == lanes.size(), "{} of {} ops have a lane", placed, lanes.size());
  return lanes;
}

}  // namespace

Timeline replay(const ReplayInput& input) {
  MOE_CHECK(input.num_ranks >= 1, "{} ranks", input.num_ranks);
  const std::vector<LaneId> lanes = lanes_of(input);
  const Precedence edges(input.graph, input.schedule, &input.orders);
  const auto ranks = static_cast<size_t>(input.num_ranks);
  Events events(input.graph.num_ops(), ranks, input.handoff_ns);
  Timeline timeline;
  timeline.num_ranks = input.num_ranks;
  timeline.spans.reserve(lanes.size() * ranks);
  for (const OpId op : edges.order(input.graph, input.schedule)) {
    const Bytes bytes = input.bytes ? input.bytes(op) : 0;
    const auto waits = [&](auto&& wait_for) {
      for (const OpId before : edges.deps.preds[op.index()]) {
        wait_for(before.index(), lanes[before.index()] == lanes[op.index()]);
      }
    };
    const auto duration = [&](size_t rank) {
      const Nanoseconds ns = input.duration_ns(op, static_cast<int32_t>(rank));
      MOE_CHECK(ns >= 0, "op '{}' takes {} ns", input.graph.op(op).name, ns);
      return ns;
    };
    const auto done = [&](size_t rank, const Events::Times& t) {
      timeline.spans.push_back(
          {op, static_cast<int32_t>(rank), lanes[op.index()], t.post, t.begin, t.end, bytes});
    };
    const bool together = input.graph.def(op).collective != Collective::kNone;
    events.run(op.index(), together, waits, duration, done);
  }
  const auto key = [](const Span& s) { return std::tie(s.begin, s.rank, s.lane, s.op); };
  std::sort(timeline.spans.begin(), timeline.spans.end(),
            [&key](const Span& a, const Span& b) { return key(a) < key(b); });
  return timeline;
}

LowerBound lower_bound(const Graph& graph, const Schedule& schedule,
                       const std::function<Nanoseconds(OpId)>& duration_ns) {
  const Dependencies deps = dependencies(graph);
  std::vector<Nanoseconds> busy(schedule.lanes.size());
  std::vector<Nanoseconds> end(graph.num_ops());
  LowerBound bound;
  for (const OpId op : topological_order(graph, deps)) {
    const Nanoseconds ns = duration_ns(op);
    Nanoseconds begin = 0;
    for (const OpId before : deps.preds[op.index()]) begin = std::max(begin, end[before.index()]);
    end[op.index()] = begin + ns;
    Nanoseconds& lane = busy[schedule.lane_of[op.index()].index()];
    lane += ns;
    bound.critical_path_ns = std::max(bound.critical_path_ns, end[op.index()]);
    bound.busiest_lane_ns = std::max(bound.busiest_lane_ns, lane);
  }
  return bound;
}

}  // namespace moe
