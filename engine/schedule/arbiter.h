// The state of one arbiter, which decides for all ranks which posted op its lanes transfer next.
// The class has no notion of time and no threads. The event engine and the executors both use it,
// so that simulated and executed steps choose the next transfer by the same rule.
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

  /// The arbiter of `lanes`. `choose` returns the policy function of a lane, to be used instead of
  /// Lane::choose; if `choose` is null, Lane::choose is used. Keeps references to graph and
  /// schedule.
  ArbiterState(const Graph& graph, const Schedule& schedule, Arbiter lanes,
               std::function<Choose(LaneId)> choose = nullptr);

  /// To be called when compute op `op` begins on the first rank (calls for further ranks do no
  /// harm). Starts the holds from `op` (see Hold).
  void begun(OpId op);
  /// To be called when all members have posted `op`: on every rank, all ops that it depends on are
  /// over, and so is the op before it if its lane runs in order.
  void posted(OpId op);
  /// Begins and returns the next transfer. Among the ops that are posted, not over and not held
  /// back, it takes the one with the highest priority, then the lowest op id. Returns nullopt while
  /// a transfer is in flight or if no op may begin. Of a lane with Pick::kPolicy, only the op that
  /// its policy returns takes part; throws RunError with lane and stage if that op is not among the
  /// ops given to the policy.
  std::optional<Transfer> next();
  /// To be called when the transfer in flight is over on all members. Returns whether its op is
  /// over too, that is, whether this was its last chunk.
  bool done();

  bool busy() const { return in_flight_.has_value(); }
  /// Posted ops that are not over. For use in error messages.
  const std::vector<OpId>& waiting() const { return waiting_; }

 private:
  bool held_back(OpId op) const;
  /// Returns the op that the policy of `lane` chooses. RunError if it is not a candidate.
  OpId named(LaneId lane, const std::vector<OpId>& candidates) const;

  const Graph& graph_;
  const Schedule& schedule_;
  Arbiter lanes_;
  std::vector<Choose> choose_;     // indexed as lanes_
  std::vector<const Hold*> mine_;  // the holds whose op `until` is on these lanes
  std::vector<const Hold*> active_;
  std::vector<OpId> waiting_;         // posted ops that are not over, in ascending order
  std::vector<int64_t> chunks_over_;  // number of transferred chunks, indexed as waiting_
  std::optional<Transfer> in_flight_;
};

}  // namespace moe
