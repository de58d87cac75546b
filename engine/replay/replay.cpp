#include "engine/replay/replay.h"

#include <tuple>
#include <vector>

#include "engine/base/errors.h"
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

/// When each rank is through with each op, filled in an order in which predecessors come first.
class Clock {
 public:
  Clock(const ReplayInput& input, const Dependencies& deps)
      : input_(input),
        deps_(deps),
        ranks_(static_cast<size_t>(input.num_ranks)),
        end_(input.graph.num_ops() * ranks_),
        posts_(ranks_) {}

  /// Runs the op on every rank and appends its spans.
  void run(OpId op, LaneId lane, std::vector<Span>& spans) {
    std::fill(posts_.begin(), posts_.end(), 0);
    for (const OpId before : deps_.preds[op.index()]) {
      const Nanoseconds* const ends = &end_[before.index() * ranks_];
      for (size_t r = 0; r < ranks_; ++r) posts_[r] = std::max(posts_[r], ends[r]);
    }
    const bool together = input_.graph.def(op).collective != Collective::kNone;
    const Nanoseconds last_post = *std::max_element(posts_.begin(), posts_.end());
    const Nanoseconds slowest = together ? slowest_ns(op) : 0;
    const Bytes bytes = input_.bytes ? input_.bytes(op) : 0;
    for (size_t r = 0; r < ranks_; ++r) {
      const Nanoseconds begin = together ? last_post : posts_[r];
      const Nanoseconds end = begin + (together ? slowest : duration_ns(op, r));
      end_[op.index() * ranks_ + r] = end;
      spans.push_back({op, static_cast<int32_t>(r), lane, posts_[r], begin, end, bytes});
    }
  }

 private:
  Nanoseconds duration_ns(OpId op, size_t rank) const {
    const Nanoseconds ns = input_.duration_ns(op, static_cast<int32_t>(rank));
    MOE_CHECK(ns >= 0, "op '{}' takes {} ns", input_.graph.op(op).name, ns);
    return ns;
  }

  Nanoseconds slowest_ns(OpId op) const {
    Nanoseconds slowest = 0;
    for (size_t r = 0; r < ranks_; ++r) slowest = std::max(slowest, duration_ns(op, r));
    return slowest;
  }

  const ReplayInput& input_;
  const Dependencies& deps_;
  size_t ranks_;
  std::vector<Nanoseconds> end_;    // by op * ranks + rank
  std::vector<Nanoseconds> posts_;  // of the op that runs, by rank
};

}  // namespace

Timeline replay(const ReplayInput& input) {
  MOE_CHECK(input.num_ranks >= 1, "{} ranks", input.num_ranks);
  const std::vector<LaneId> lanes = lanes_of(input);
  const Precedence edges(input.graph, input.schedule, &input.orders);
  Clock clock(input, edges.deps);
  Timeline timeline;
  timeline.num_ranks = input.num_ranks;
  timeline.spans.reserve(lanes.size() * static_cast<size_t>(input.num_ranks));
  for (const OpId op : edges.order(input.graph, input.schedule)) {
    clock.run(op, lanes[op.index()], timeline.spans);
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
