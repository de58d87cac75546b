// Record: a timeline together with its schedule. Returns when each op was ready and what each
// collective waited for. Only explain.cpp uses it.
#pragma once

#include <vector>

#include "engine/analysis/explain.h"

namespace moe {

/// A set of times, as disjoint intervals.
class Times {
 public:
  using Interval = std::pair<Nanoseconds, Nanoseconds>;
  Times() = default;
  explicit Times(std::vector<Interval> intervals);
  /// Returns how many nanoseconds of [lo, hi) are in the set.
  Nanoseconds within(Nanoseconds lo, Nanoseconds hi) const { return before(hi) - before(lo); }
  Nanoseconds total() const { return sums_.empty() ? 0 : sums_.back(); }
  Times without(const Times& other) const;

 private:
  Nanoseconds before(Nanoseconds at) const;

  std::vector<Interval> intervals_;  // ascending, with gaps between them
  std::vector<Nanoseconds> sums_;    // total length of intervals 0 to i, at index i
};

/// Returns the groups of ranks that must all have posted the op before one of them begins it: those
/// in which a collective runs, or all ranks on a lane with an arbiter.
Group posts_together(const Graph& graph, OpId op, int64_t num_ranks, bool arbitrated);

class Record {
 public:
  /// Keeps references to `input` and to the spans of `timeline`.
  Record(const ReplayInput& input, const Timeline& timeline);

  bool is_comm(OpId op) const { return graph.def(op).lane == LaneKind::kComm; }
  /// Return the times at which `op` ended and began on `rank`; 0 for an op without a span.
  Nanoseconds end(OpId op, size_t rank) const { return ends_[at(op, rank)]; }
  Nanoseconds begin(OpId op, size_t rank) const;
  /// Returns the end on `rank` of the last op whose data `op` needs; 0 if there is none.
  Nanoseconds data_ready(OpId op, size_t rank) const;
  /// Returns the end on `rank` of the last op that precedes `op` by data or by an order edge; 0 if
  /// there is none.
  Nanoseconds edges_ready(OpId op, size_t rank) const;
  /// Returns the op whose data `op` needs and that ended last on `rank`; invalid if there is none.
  OpId last_needed(OpId op, size_t rank) const;
  /// Returns the order edge into `op` whose first op ended last on `rank`; null if there is none.
  const OrderEdge* last_ordered(OpId op, size_t rank) const;

  /// Splits the time of a collective from data_ready() to its end: first its transfer as if alone
  /// on the network (kData), then its delays in the order in which they occurred. The parts add up
  /// to the whole time.
  std::vector<Exposure> made_of(OpId op, size_t rank) const;
  /// Returns the time of `op` in the cost model, alone and not cut into chunks, on the slowest rank
  /// of all, or of the group of `rank`.
  Nanoseconds alone_ns(OpId op) const;
  Nanoseconds alone_ns(OpId op, size_t rank) const;

  const Graph& graph;
  const Schedule& schedule;
  const size_t num_ranks;
  const Dependencies deps;                                           // data and mutation edges
  std::vector<std::vector<const OrderEdge*>> edges_into, edges_out;  // indexed by op
  std::vector<std::vector<const Span*>> compute, comm;               // per rank, sorted by begin
  std::vector<std::vector<const Span*>> chunks;                      // indexed by at(op, rank)

  size_t at(OpId op, size_t rank) const { return op.index() * num_ranks + rank; }

 private:
  using Spans = std::vector<const Span*>;
  const Spans& on_lane(size_t rank, LaneId lane) const {
    return by_lane_[rank * schedule.lanes.size() + lane.index()];
  }
  void add_wait(std::vector<Exposure>& parts, OpId op, size_t rank, Nanoseconds lo, Nanoseconds hi,
                const std::vector<LaneId>& lanes) const;
  void add_members(std::vector<Exposure>& parts, OpId op, size_t rank, Nanoseconds ns) const;
  Group posts_together(OpId op) const;
  void add_transfers(std::vector<Exposure>& parts, OpId op, size_t rank, Nanoseconds posted) const;
  OpId met(const Span& span) const;
  const Hold* held(OpId op, Nanoseconds at) const;
  std::string stage_of_busy(OpId op, OpId carried) const;

  const ReplayInput& input_;
  std::vector<Spans> by_lane_;                   // per rank and lane: comm spans sorted by begin
  std::vector<std::vector<LaneId>> arbitrated_;  // per lane: all lanes of its arbiter, or empty
  std::vector<Nanoseconds> ends_;                // indexed by at(op, rank)
  std::vector<Nanoseconds> last_post_;    // indexed by at(op, rank): of the rank's posts_together()
  std::vector<Nanoseconds> first_begin_;  // indexed by op: of any rank
};

}  // namespace moe
