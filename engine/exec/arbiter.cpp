#include "engine/exec/arbiter.h"

#include <algorithm>
#include <chrono>

#include "engine/base/errors.h"
#include "engine/comm/communicator.h"
#include "engine/exec/sync.h"

namespace moe {
namespace {

constexpr double kLongestTimeout = 1e9;  // seconds; its nanoseconds fit in an int64

size_t index(int64_t i) {
  return static_cast<size_t>(i);
}

}  // namespace

Arbitration::Arbitration(const Graph& graph, const Schedule& schedule, Arbiter lanes,
                         Options options)
    : graph_(graph),
      schedule_(schedule),
      options_(std::move(options)),
      timeout_(
          static_cast<Nanoseconds>(std::min(options_.timeout_s, kLongestTimeout) * kNsPerSecond)),
      turn_on_(schedule.lanes.size()),
      state_(graph, schedule, std::move(lanes), options_.choose),
      taken_(index(options_.num_ranks)),
      num_posted_(graph.num_ops()),
      ready_(graph.num_ops()),
      posted_at_(graph.num_ops() * index(options_.num_ranks)) {}

void Arbitration::start_pass() {
  MOE_CHECK(!state_.busy() && state_.waiting().empty(), "a pass ended with turns left");
  end_ = idle_since_ = 0;
  std::fill(num_posted_.begin(), num_posted_.end(), 0);
  std::fill(ready_.begin(), ready_.end(), 0);
  std::fill(posted_at_.begin(), posted_at_.end(), 0);
}

void Arbitration::post(int64_t rank, OpId op, Nanoseconds ready) {
  const std::lock_guard lock(mutex_);
  MOE_CHECK(posted_at(rank, op) == 0, "rank {} posted op '{}' twice", rank, graph_.op(op).name);
  posted_at(rank, op) = clock_ns();
  ready_[op.index()] = std::max(ready_[op.index()], ready);
  if (++num_posted_[op.index()] < options_.num_ranks) return;
  state_.posted(op);
  choose();
}

void Arbitration::begun(OpId op) {
  const std::lock_guard lock(mutex_);
  state_.begun(op);
}

/// Where the network is free and something may begin, a turn for all.
void Arbitration::choose() {
  if (turn_.error) return;
  try {
    const auto transfer = state_.next();
    if (!transfer) return;
    turn_ = {transfer->op, transfer->chunk, std::max(end_, ready_[transfer->op.index()])};
  } catch (const std::exception&) {  // a policy's
    turn_ = {.op = state_.waiting().front(), .error = std::current_exception()};
  }
  end_ = 0;
  num_done_ = 0;
  std::fill(taken_.begin(), taken_.end(), false);
  turn_on_[schedule_.lane_of[turn_.op.index()].index()].notify_all();
}

/// The turn is on this lane, and this rank has not been given it. An error is one rank's to tell.
bool Arbitration::is_for(int64_t rank, LaneId lane) const {
  if (turn_.error ? rank != 0 : !state_.busy()) return false;
  return schedule_.lane_of[turn_.op.index()] == lane && !taken_[index(rank)];
}

Turn Arbitration::next(int64_t rank, LaneId lane) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return aborted_ || is_for(rank, lane); };
  Nanoseconds deadline = clock_ns() + timeout_;
  const auto time = [&] {
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
  };
  while (!turn_on_[lane.index()].wait_until(lock, time(), ready)) {
    const Overdue late = overdue(rank, lane);
    if (late.op.valid() && late.since + timeout_ <= deadline) {
      return {.op = late.op, .error = std::make_exception_ptr(RunError(missing(late.op)))};
    }
    deadline = late.since + timeout_;
  }
  if (aborted_) throw Aborted();
  taken_[index(rank)] = true;
  return turn_;
}

Arbitration::Overdue Arbitration::overdue(int64_t rank, LaneId lane) {
  Overdue oldest{OpId(), clock_ns()};
  if (state_.busy()) return oldest;
  for (size_t i = 0; i < num_posted_.size(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (schedule_.lane_of[i] != lane || posted_at(rank, op) == 0) continue;
    if (num_posted_[i] == options_.num_ranks) continue;
    const Nanoseconds since = std::max(posted_at(rank, op), idle_since_);
    if (since < oldest.since) oldest = {op, since};
  }
  return oldest;
}

/// "rank 1 did not post it in 30 s; rank 1 waits for b1.moe.gate"
std::string Arbitration::missing(OpId op) {
  std::vector<int64_t> ranks;
  std::string waits;
  for (int64_t r = 0; r < options_.num_ranks; ++r) {
    if (posted_at(r, op) != 0) continue;
    ranks.push_back(r);
    if (options_.waits_for) {
      waits += fmt::format("; rank {} waits for {}", r, options_.waits_for(r, op));
    }
  }
  return fmt::format("rank{} {} did not post it in {} s{}", ranks.size() == 1 ? "" : "s",
                     fmt::join(ranks, ", "), options_.timeout_s, waits);
}

void Arbitration::done(int64_t rank, Nanoseconds end) {
  const std::lock_guard lock(mutex_);
  MOE_CHECK(state_.busy() && taken_[index(rank)], "rank {} has no turn", rank);
  end_ = std::max(end_, end);
  if (++num_done_ < options_.num_ranks) return;
  idle_since_ = clock_ns();
  state_.done();
  choose();
}

void Arbitration::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  for (std::condition_variable& changed : turn_on_) changed.notify_all();
}

}  // namespace moe
