// The choices of one arbiter: which posted op its lanes transfer next. State only, without time or
// threads: the event engine and the executors drive it alike, so that both choose by one rule.
#pragma once

#include <optional>
#include <vector>

#include "engine/schedule/schedule.h"

namespace moe {

class ArbiterState {
 public:
  struct Transfer {
    OpId op;
    int64_t chunk;
    int64_t num_chunks;
  };

  /// The arbiter of these lanes. choose: instead of a lane's own; null: the lane's own. Keeps
  /// references to graph and schedule.
  ArbiterState(const Graph& graph, const Schedule& schedule, Arbiter lanes,
               std::function<Choose(LaneId)> choose = nullptr);

  /// A compute op begins, on the first rank that gets there or on any: holds that it announces.
  void begun(OpId op);
  /// Every member has posted the op: all that it waits for is over on every rank and, on a lane
  /// that runs in order, the op before it.
  void posted(OpId op);
  /// Takes up the next transfer: the highest priority, then the lowest op id, of what is posted,
  /// not over and not held back; nothing while one is in flight or where none may begin. A lane
  /// that picks by policy enters the one op that its policy names; RunError with lane and stage
  /// when that op is not among those given.
  std::optional<Transfer> next();
  /// The transfer in flight is over on every member. Returns whether the op is.
  bool done();

  bool busy() const { return in_flight_.has_value(); }
  /// Posted ops that are not over, for messages.
  const std::vector<OpId>& waiting() const { return waiting_; }

 private:
  bool held_back(OpId op) const;
  /// Of the lane's candidates the one that its policy names.
  OpId named(LaneId lane, const std::vector<OpId>& candidates) const;

  const Graph& graph_;
  const Schedule& schedule_;
  Arbiter lanes_;
  std::vector<Choose> choose_;     // by lane of lanes_
  std::vector<const Hold*> mine_;  // holds until ops of these lanes
  std::vector<const Hold*> active_;
  std::vector<OpId> waiting_;         // ascending by id
  std::vector<int64_t> chunks_over_;  // of waiting_
  std::optional<Transfer> in_flight_;
};

}  // namespace moe
