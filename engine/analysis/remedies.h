// Remedies: changes of the schedule, or of the plan, that may shorten an exposure. Only
// findings.cpp uses them: it replays the changed schedules. Nothing is simulated here.
#pragma once

#include "engine/analysis/findings.h"

namespace moe {

struct Remedy {
  std::string advice;  // remedies with equal advice are the same remedy
  std::string group;   // name shared by remedies of the same stage or lane
  bool wide = false;   // true: changes the whole stage or lane, not one op or edge of it
  std::function<void(Schedule&)> change;  // null if the remedy needs another plan
  Nanoseconds estimate_ns = 0;            // if `change` is null: estimated gain for this exposure
  Exposure cause = {};  // the exposure that the remedy shortens, if not the given one
};

class Remedies {
 public:
  /// Keeps a reference to `input`. The returned remedies must not outlive this object.
  explicit Remedies(const FindingsInput& input);

  std::vector<Remedy> of(const Exposure& exposure) const;

 private:
  std::vector<Remedy> of_data(const Exposure& e) const;
  std::vector<Remedy> of_order_edge(const Exposure& e) const;
  std::vector<Remedy> of_lane_order(const Exposure& e) const;
  std::vector<Remedy> of_busy_lane(const Exposure& e) const;
  std::vector<Remedy> of_comm_lane(const Exposure& e) const;
  std::vector<Remedy> of_contention(const Exposure& e) const;
  Remedy own_lane(const Exposure& e) const;
  Remedy not_exclusive(LaneId lane, LaneId other) const;
  void run_under(Schedule& schedule, OpId op, OpId comm) const;
  OpId movable(const Exposure& e) const;
  /// Returns the summed time of the compute ops of the same layer and phase that need `comm`
  /// without another collective between. This compute could hide parts of `comm`, if it were cut.
  Nanoseconds work_behind(OpId comm) const;
  Nanoseconds shortest_part(OpId comm) const;
  LaneId lane_for(Collective kind) const;
  Nanoseconds alone_ns(OpId op) const { return alone_[op.index()]; }
  const std::string& name(OpId op) const { return graph_.op(op).name; }
  bool is_comm(OpId op) const { return graph_.def(op).lane == LaneKind::kComm; }

  const FindingsInput& input_;
  const Graph& graph_;
  const Schedule& schedule_;
  const Dependencies deps_;
  const Reachability reach_;  // over data and mutation edges
  std::vector<Nanoseconds> alone_;
  std::vector<const CollectiveShare*> shares_;  // indexed by op; null if it is no collective
};

}  // namespace moe
