// A timeline seen from the schedule that it ran under: when each op was ready, and what each
// collective waited for. For explain.cpp.
#pragma once

#include <vector>

#include "engine/analysis/explain.h"

namespace moe {

/// A set of times.
class Times {
 public:
  using Interval = std::pair<Nanoseconds, Nanoseconds>;
  Times() = default;
  explicit Times(std::vector<Interval> intervals);
  /// How much of [lo, hi) is in the set.
  Nanoseconds within(Nanoseconds lo, Nanoseconds hi) const { return before(hi) - before(lo); }
  Nanoseconds total() const { return sums_.empty() ? 0 : sums_.back(); }
  Times without(const Times& other) const;

 private:
  Nanoseconds before(Nanoseconds at) const;

  std::vector<Interval> intervals_;  // ascending, apart from each other
  std::vector<Nanoseconds> sums_;    // up to the end of each
};

class Record {
 public:
  /// Keeps references to both.
  Record(const ReplayInput& input, const Timeline& timeline);

  bool is_comm(OpId op) const { return graph.def(op).lane == LaneKind::kComm; }
  /// 0 for an op without a span.
  Nanoseconds end(OpId op, size_t rank) const { return ends_[at(op, rank)]; }
  Nanoseconds begin(OpId op, size_t rank) const;
  /// When the last op whose data it needs was over.
  Nanoseconds data_ready(OpId op, size_t rank) const;
  /// And the last that an order edge puts before it.
  Nanoseconds edges_ready(OpId op, size_t rank) const;
  /// The predecessor that was over last: by data; by order edge, null where there is none.
  OpId last_needed(OpId op, size_t rank) const;
  const OrderEdge* last_ordered(OpId op, size_t rank) const;

  /// A collective from data_ready to its end: first its transfer alone on the wire (kData), then
  /// its delays as they came. The sum is the whole.
  std::vector<Exposure> made_of(OpId op, size_t rank) const;
  /// Alone, whole, on the slowest rank.
  Nanoseconds alone_ns(OpId op) const;

  const Graph& graph;
  const Schedule& schedule;
  const size_t num_ranks;
  const Dependencies deps;                                           // data and mutation edges
  std::vector<std::vector<const OrderEdge*>> edges_into, edges_out;  // by op
  std::vector<std::vector<const Span*>> compute, comm;               // by rank, by begin
  std::vector<std::vector<const Span*>> chunks;                      // by op and rank

  size_t at(OpId op, size_t rank) const { return op.index() * num_ranks + rank; }

 private:
  using Spans = std::vector<const Span*>;
  const Spans& on_lane(size_t rank, LaneId lane) const {
    return by_lane_[rank * schedule.lanes.size() + lane.index()];
  }
  void add_wait(std::vector<Exposure>& parts, OpId op, size_t rank, Nanoseconds lo, Nanoseconds hi,
                const std::vector<LaneId>& lanes) const;
  void add_members(std::vector<Exposure>& parts, OpId op, Nanoseconds ns) const;
  void add_transfers(std::vector<Exposure>& parts, OpId op, size_t rank, Nanoseconds posted) const;
  OpId met(const Span& span) const;
  const Hold* held(OpId op, Nanoseconds at) const;
  std::string stage_of_busy(OpId op, OpId carried) const;

  const ReplayInput& input_;
  std::vector<Spans> by_lane_;                        // by rank and lane: comm spans by begin
  std::vector<std::vector<LaneId>> arbitrated_;       // by lane: the lanes of its arbiter
  std::vector<Nanoseconds> ends_;                     // by op and rank
  std::vector<Nanoseconds> last_post_, first_begin_;  // by op, over ranks
};

}  // namespace moe
