// The event engine's machine: time, what is ready, what is in flight. See replay.h for its rules.
#pragma once

#include <deque>
#include <memory>
#include <queue>
#include <tuple>
#include <vector>

#include "engine/network/wire.h"
#include "engine/replay/replay.h"
#include "engine/schedule/arbiter.h"
#include "engine/schedule/precedence.h"

namespace moe {

class Engine {
 public:
  /// Keeps a reference to the input. What its functions say may change between runs.
  explicit Engine(const ReplayInput& input);
  /// From time 0, as often as wanted.
  Timeline run();

 private:
  /// Of one op on all ranks.
  struct State {
    size_t ranks_waiting = 0;  // that have not posted
    Nanoseconds last_post = 0;
    int64_t chunk = 0, num_chunks = 1;
    Nanoseconds begin = 0;       // of the chunk in flight
    Nanoseconds chunk_post = 0;  // of a later chunk: the end of the one before
  };
  /// Of one op on one rank.
  struct Post {
    size_t waits = 0;             // predecessors that are not over
    Nanoseconds lane_free = 0;    // the latest end of those on its own lane
    Nanoseconds others_over = 0;  // and of the others
    Nanoseconds at = 0;           // when the rank posted it
  };
  /// What happens at one time: first ends, in order of op and rank, then begins of compute ops that
  /// announce others and of transfers that share links, then choices.
  enum class Kind : uint8_t { kEnd, kBegin, kSend, kChoose };
  struct Event {
    Nanoseconds at;
    Kind kind;
    int32_t which;  // op; an arbiter's number
    int32_t rank;   // -1: all
    bool operator>(const Event& o) const {
      return std::tie(at, kind, which, rank) > std::tie(o.at, o.kind, o.which, o.rank);
    }
  };

  bool together(OpId op) const { return together_[op.index()]; }
  Post& post(OpId op, size_t rank) { return posts_[op.index() * ranks_ + rank]; }
  void push(Nanoseconds at, Kind kind, int32_t which, int32_t rank = -1) {
    events_.push({at, kind, which, rank});
  }

  void reset();
  /// Time goes on; no further than kLongestNs, nor than what the ranks' times add up from.
  void set_now(Nanoseconds at);
  void take(const Event& event);
  void ready(OpId op, size_t rank);
  void begin_compute(OpId op, size_t rank);
  void all_posted(OpId op);
  void begin_transfer(OpId op, Nanoseconds at);
  void send(OpId op);
  Nanoseconds duration_ns(OpId op, size_t rank) const;
  Nanoseconds alone_ns(OpId op) const;
  void end_transfer(OpId op);
  void over(OpId op, size_t rank);
  void choose(size_t arbiter);
  void fail_stuck() const;

  const ReplayInput& input_;
  const size_t ranks_;
  const Precedence edges_;
  std::vector<OpId> first_;          // ops that wait for nothing
  std::vector<LaneId> lanes_;        // by op
  std::vector<char> together_;       // by op: a collective
  std::vector<char> announces_;      // by op: a hold begins with it
  std::vector<int32_t> arbiter_of_;  // by lane, -1: none
  const bool may_meet_;              // transfers
  const Nanoseconds latest_;         // that the clock may show
  std::deque<ArbiterState> arbiters_;
  std::unique_ptr<Wire> wire_;  // null where no transfers meet
  std::vector<OpId> sent_;      // by number on the wire
  std::vector<State> states_;
  std::vector<Post> posts_;  // by op and rank
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Nanoseconds now_ = 0;
  size_t num_over_ = 0;
  Timeline timeline_;
};

}  // namespace moe
