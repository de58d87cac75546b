// What could be changed about an exposure. For findings.cpp, which tries it.
#pragma once

#include "engine/analysis/findings.h"

namespace moe {

struct Remedy {
  std::string advice;                     // says all: equal advice is one remedy
  std::string group;                      // remedies of one stage or lane
  bool wide = false;                      // it is for all of the group
  std::function<void(Schedule&)> change;  // null: it takes another plan
  Nanoseconds estimate_ns = 0;            // then: what this exposure adds to its worth
  Exposure cause = {};  // that it is for, where that is not the exposure asked about but behind it
};

class Remedies {
 public:
  /// Keeps a reference. What it returns must not outlive it.
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
  /// Compute that only waits for this collective: what a part of it could hide the rest under.
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
  const Reachability reach_;  // by data
  std::vector<Nanoseconds> alone_;
  std::vector<const CollectiveShare*> shares_;  // by op, null: no collective
};

}  // namespace moe
