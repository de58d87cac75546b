#include "engine/exec/device_turns.h"

#include <algorithm>

namespace moe {

DeviceTurns::DeviceTurns(const Plan& plan, std::function<Choose(LaneId)> choose, Ranks ranks)
    : plan_(plan),
      choose_(std::move(choose)),
      ranks_(std::move(ranks)),
      lanes_(arbiters(plan.schedule)),
      mine_(plan.schedule.lanes.size()) {
  for (const Arbiter& arbiter : lanes_) {
    for (const LaneId lane : arbiter) mine_[lane.index()] = true;
  }
}

void DeviceTurns::start_pass(const std::function<bool(OpId)>& runs) {
  arbiters_.clear();
  left_ = 0;
  for (const Arbiter& lanes : lanes_) {
    One& one = arbiters_.emplace_back(One{{plan_.graph, plan_.schedule, lanes, choose_}, {}, {}});
    for (const LaneId lane : lanes) {
      OpId before;
      for (const OpId op : plan_.orders.lanes[lane.index()]) {
        if (!runs(op)) continue;
        one.ops.push_back({op, plan_.schedule.picks(lane) ? OpId() : before});
        before = op;
      }
    }
    left_ += one.ops.size();
    for (const Hold& hold : plan_.schedule.holds) {
      const LaneId lane = plan_.schedule.lane_of[hold.until.index()];
      const bool own = std::find(lanes.begin(), lanes.end(), lane) != lanes.end();
      if (own && runs(hold.from)) one.announcers.push_back(hold.from);
    }
  }
}

bool DeviceTurns::may_post(const One& one, const Op& op) const {
  const std::vector<OpId>& waits = plan_.waits[op.id.index()];
  const auto is_over = [&](OpId id) {
    const auto own = [&](const Op& other) { return other.id == id; };
    const auto found = std::find_if(one.ops.begin(), one.ops.end(), own);
    return found != one.ops.end() ? found->over : ranks_.over(id);
  };
  if (op.before.valid() && !is_over(op.before)) return false;
  return std::all_of(waits.begin(), waits.end(), is_over);
}

/// What has happened since the last look. Begins are looked for after posts: a hold ends where its
/// op is posted, and must have begun by then.
bool DeviceTurns::note(One& one) {
  bool happened = false;
  if (one.in_flight && ranks_.chunk_is_over(one.in_flight->op, one.in_flight->chunk)) {
    const OpId op = one.in_flight->op;
    one.in_flight.reset();
    happened = true;
    if (one.state.done()) {
      --left_;
      std::find_if(one.ops.begin(), one.ops.end(), [&](const Op& o) { return o.id == op; })->over =
          true;
    }
  }
  std::vector<Op*> ready;
  for (Op& op : one.ops) {
    if (!op.posted && may_post(one, op)) ready.push_back(&op);
  }
  std::erase_if(one.announcers, [&](OpId op) {
    if (!ranks_.begun(op)) return false;
    one.state.begun(op);
    return happened = true;
  });
  for (Op* const op : ready) {
    op->posted = happened = true;
    one.state.posted(op->id);
  }
  return happened;
}

bool DeviceTurns::go_on() {
  bool happened = false;
  for (One& one : arbiters_) {
    happened |= note(one);
    if (one.in_flight) continue;
    one.in_flight = one.state.next();
    if (!one.in_flight) continue;
    ranks_.give(one.in_flight->op, one.in_flight->chunk);
    happened = true;
  }
  return happened;
}

OpId DeviceTurns::current() const {
  for (const One& one : arbiters_) {
    if (one.in_flight) return one.in_flight->op;
    for (const Op& op : one.ops) {
      if (!op.over) return op.id;
    }
  }
  return OpId();
}

}  // namespace moe
