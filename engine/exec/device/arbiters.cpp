#include "engine/exec/device/arbiters.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/rethrow.h"
#include "engine/comm/job/processes.h"

namespace moe {

DeviceArbiters::DeviceArbiters(const Plan& plan, const RunOptions& options, Ranks ranks)
    : plan_(plan),
      ranks_(std::move(ranks)),
      rank_(options.processes != nullptr ? options.processes->rank() : 0),
      in_job_(options.processes != nullptr),
      mine_(plan.schedule.lanes.size()) {
  auto made = make_lane_arbiters(plan, options, 1, nullptr);
  for (const Arbiter& lanes : arbiters(plan.schedule)) {
    arbiters_.push_back({lanes, std::move(made[arbiters_.size()]), {}, {}, {}});
    for (const LaneId lane : lanes) mine_[lane.index()] = true;
  }
}

void DeviceArbiters::start_step(int64_t step, const std::function<bool(OpId)>& runs) {
  step_ = step;
  left_ = 0;
  for (LaneGroup& group : arbiters_) {
    group.arbiter->start_step();
    add_ops(group, runs);
    left_ += group.ops.size();
  }
}

void DeviceArbiters::add_ops(LaneGroup& group, const std::function<bool(OpId)>& runs) {
  group.ops.clear();
  group.announcers.clear();
  for (const LaneId lane : group.lanes) {
    OpId before;
    for (const OpId op : plan_.orders.lanes[lane.index()]) {
      if (!runs(op)) continue;
      group.ops.push_back({op, plan_.schedule.picks(lane) ? OpId() : before});
      before = op;
    }
  }
  for (const Hold& hold : plan_.schedule.holds) {
    const LaneId lane = plan_.schedule.lane_of[hold.until.index()];
    const bool own = std::find(group.lanes.begin(), group.lanes.end(), lane) != group.lanes.end();
    // An op that does not run is never posted, so its hold would not end.
    if (own && runs(hold.from) && runs(hold.until)) group.announcers.push_back(hold.from);
  }
}

void DeviceArbiters::end_step() {
  for (LaneGroup& group : arbiters_) group.arbiter->end_step();
}

bool DeviceArbiters::may_post(const LaneGroup& group, const Op& op) const {
  const std::vector<OpId>& waits = plan_.waits[op.id.index()];
  const auto is_over = [&](OpId id) {
    const auto own = [&](const Op& other) { return other.id == id; };
    const auto found = std::find_if(group.ops.begin(), group.ops.end(), own);
    return found != group.ops.end() ? found->over : ranks_.over(id);
  };
  if (op.before.valid() && !is_over(op.before)) return false;
  return std::all_of(waits.begin(), waits.end(), is_over);
}

/// Reports to the arbiter what has happened since the last call; returns whether anything has. Ops
/// that may be posted are determined before the begins of compute ops, but reported after them,
/// because a hold ends when Hold::until is posted and must have begun by then. Ops that a turn made
/// ready are posted before the turn is reported as done.
bool DeviceArbiters::report(LaneGroup& group) {
  bool happened = false;
  const bool through =
      group.in_flight && ranks_.chunk_is_over(group.in_flight->op, group.in_flight->chunk);
  if (through) {
    const auto [op, chunk, since, error] = *group.in_flight;
    if (chunk + 1 == num_chunks(plan_.graph, plan_.schedule, op)) {
      --left_;
      std::find_if(group.ops.begin(), group.ops.end(), [op = op](const Op& o) {
        return o.id == op;
      })->over = true;
    }
  }
  const Nanoseconds now = clock_ns();
  std::vector<Ready> ready;
  for (Op& op : group.ops) {
    if (op.posted || !may_post(group, op)) continue;
    ready.push_back({op.id, now});
    op.posted = true;
  }
  std::erase_if(group.announcers, [&](OpId op) {
    if (!ranks_.begun(op)) return false;
    group.arbiter->begun(rank_, op);
    return happened = true;
  });
  if (!ready.empty()) group.arbiter->post(rank_, ready);
  if (through) {
    group.in_flight.reset();
    group.arbiter->done(rank_, now);
  }
  return happened || through || !ready.empty();
}

bool DeviceArbiters::take(LaneGroup& group) {
  if (group.in_flight) return false;
  for (const LaneId lane : group.lanes) {
    group.in_flight = group.arbiter->try_next(rank_, lane);
    if (group.in_flight) break;
  }
  if (!group.in_flight) return false;
  const auto& [op, chunk, since, error] = *group.in_flight;
  if (error) {
    std::rethrow_exception(with_prefix(
        fmt::format("rank {}, step {}, op {}: ", rank_, step_, plan_.graph.op(op).name), error));
  }
  ranks_.enqueue(op, chunk);
  return true;
}

bool DeviceArbiters::awaits_others() const {
  return in_job_ && std::any_of(arbiters_.begin(), arbiters_.end(), [](const LaneGroup& group) {
           return !group.in_flight &&
                  std::any_of(group.ops.begin(), group.ops.end(),
                              [](const Op& op) { return op.posted && !op.over; });
         });
}

bool DeviceArbiters::go_on() {
  bool happened = false;
  for (LaneGroup& group : arbiters_) {
    happened |= report(group);
    happened |= take(group);
  }
  return happened;
}

}  // namespace moe
