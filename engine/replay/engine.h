// The state and the events of one replay: time, ops that are ready, and transfers in progress. The
// rules of the replay are in replay.h.
#pragma once

#include <deque>
#include <memory>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/network/wire.h"
#include "engine/replay/replay.h"
#include "engine/schedule/arbiter.h"
#include "engine/schedule/precedence.h"

namespace moe {

class Engine {
 public:
  /// Keeps a reference to `input`. The functions in `input` may return other values in each run.
  explicit Engine(const ReplayInput& input);
  /// Replays the step from time 0 and returns its timeline. May be called repeatedly. Throws
  /// RunError when an arbiter holds an op back forever.
  Timeline run();

 private:
  /// The state of a collective in one of its groups.
  struct Meeting {
    size_t ranks_waiting = 0;  // number of members that have not posted the op
    Nanoseconds last_post = 0;
    int64_t chunk = 0;
    Nanoseconds begin = 0;  // when the current chunk began
    /// Post time of the current chunk if it is not the first: the end of the chunk before it.
    Nanoseconds chunk_post = 0;
  };
  /// A collective; not used for other ops.
  struct Together {
    Group group;
    size_t first = 0;       // index of the meeting of its first group
    size_t num_groups = 0;  // 0: the op is no collective
    int64_t num_chunks = 1;
    // With an arbiter: number of groups that have not posted the op, and that have not ended their
    // current chunk.
    size_t groups_waiting = 0, groups_moving = 0;
  };
  /// The state of one op on one rank.
  struct Post {
    size_t waits = 0;             // number of predecessors that are not over
    Nanoseconds lane_free = 0;    // latest end of the predecessors on the op's own lane
    Nanoseconds others_over = 0;  // latest end of the predecessors on other lanes
    Nanoseconds launched = 0;     // when the host had launched the op
    Nanoseconds at = 0;           // when the rank posted the op
  };
  /// The host of a rank: the next op of host_order_ that it launches, and when it is free.
  struct HostState {
    size_t next = 0;
    Nanoseconds free = 0;
  };
  /// The order of events at the same time: first ends, ordered by op and rank; then launches by the
  /// host; then begins of
  /// compute ops that start a hold of an arbiter; then begins of transfers on shared links; then
  /// choices of arbiters.
  enum class Kind : uint8_t { kEnd, kLaunch, kBegin, kSend, kChoose };
  struct Event {
    Nanoseconds at;
    Kind kind;
    int32_t which;   // the op, or the number of the arbiter
    int32_t number;  // of the group of a collective, or of the rank
    bool operator>(const Event& o) const {
      return std::tie(at, kind, which, number) > std::tie(o.at, o.kind, o.which, o.number);
    }
  };

  bool together(OpId op) const { return together_[op.index()].num_groups > 0; }
  Meeting& meeting(OpId op, size_t group) { return meetings_[together_[op.index()].first + group]; }
  Post& post(OpId op, size_t rank) { return posts_[op.index() * ranks_ + rank]; }
  void push(Nanoseconds at, Kind kind, int32_t which, size_t number = 0) {
    events_.push({at, kind, which, static_cast<int32_t>(number)});
  }
  /// Calls f(rank) for each member of the group.
  template <class F>
  void each_member(OpId op, size_t group, const F& f) const {
    const Group& of = together_[op.index()].group;
    const int64_t first = of.first(static_cast<int64_t>(group));
    for (int64_t p = 0; p < of.size; ++p) f(static_cast<size_t>(of.member(first, p)));
  }

  void reset();
  /// Advances the clock. Throws UserError if `at` is after `latest_`.
  void set_now(Nanoseconds at);
  void take(const Event& event);
  void begun(OpId op);
  void launch_on(size_t number);
  void arrive(OpId op, size_t rank);
  void ready(OpId op, size_t rank);
  void begin_compute(OpId op, size_t rank);
  void all_posted(OpId op, size_t group);
  void begin_transfer(OpId op, size_t group, Nanoseconds at);
  void send(OpId op, size_t group);
  Nanoseconds duration_ns(OpId op, size_t rank) const;
  Nanoseconds alone_ns(OpId op, size_t group) const;
  void end_transfer(OpId op, size_t group);
  void over(OpId op, size_t rank);
  void choose(size_t arbiter);
  void fail_stuck() const;

  /// Returns the number in the timeline of a rank that runs the op.
  int32_t global(OpId op, size_t rank) const {
    return input_.graph.op(op).pipeline_rank * input_.num_ranks + static_cast<int32_t>(rank);
  }
  HostState& host(OpId op, size_t rank) { return hosts_[static_cast<size_t>(global(op, rank))]; }

  const ReplayInput& input_;
  const size_t ranks_;  // of each pipeline rank
  const Precedence edges_;
  std::vector<OpId> first_;  // ops without predecessors
  /// By pipeline rank: in which order a host launches the ops; empty: no host.
  std::vector<std::vector<OpId>> host_order_;
  std::vector<HostState> hosts_;     // by number in the timeline
  std::vector<LaneId> lanes_;        // indexed by op
  std::vector<Together> together_;   // indexed by op
  std::vector<char> announces_;      // indexed by op: whether its begin starts a hold
  std::vector<int32_t> arbiter_of_;  // indexed by lane: number of its arbiter, -1 for none
  bool may_meet_;                    // whether two transfers may be in progress at once
  const Nanoseconds latest_;         // the latest time that the clock may reach
  std::deque<ArbiterState> arbiters_;
  /// By pipeline rank: its links; empty where transfers do not share links.
  std::vector<std::unique_ptr<Wire>> wires_;
  /// By pipeline rank: the op and its group, indexed by the number that Wire::begin() returned.
  std::vector<std::vector<std::pair<OpId, size_t>>> sent_;
  std::vector<Meeting> meetings_;
  std::vector<Post> posts_;  // indexed by op * ranks + rank
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Nanoseconds now_ = 0;
  size_t num_over_ = 0;
  Timeline timeline_;
};

}  // namespace moe
