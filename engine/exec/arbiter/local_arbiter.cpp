#include "engine/exec/arbiter/local_arbiter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/comm/communicator.h"
#include "engine/exec/sync.h"

namespace moe {
namespace {

constexpr int64_t kAny = -1;             // stands for all ranks
constexpr double kLongestTimeout = 1e9;  // in seconds; in nanoseconds it fits in an int64

}  // namespace

LocalArbiter::LocalArbiter(const Graph& graph, const Schedule& schedule, Arbiter lanes,
                           Options options)
    : graph_(graph),
      schedule_(schedule),
      options_(std::move(options)),
      timeout_(
          static_cast<Nanoseconds>(std::min(options_.timeout_s, kLongestTimeout) * kNsPerSecond)),
      turn_on_(schedule.lanes.size()),
      state_(graph, schedule, std::move(lanes), options_.choose),
      taken_(index(options_.num_ranks)),
      done_(index(options_.num_ranks)),
      num_posted_(graph.num_ops()),
      ready_(graph.num_ops()),
      posted_at_(graph.num_ops() * index(options_.num_ranks)) {}

void LocalArbiter::start_step() {
  end_ = idle_since_ = 0;
  std::fill(num_posted_.begin(), num_posted_.end(), 0);
  std::fill(ready_.begin(), ready_.end(), 0);
  std::fill(posted_at_.begin(), posted_at_.end(), 0);
}

void LocalArbiter::end_step() {
  const std::lock_guard lock(mutex_);
  MOE_CHECK(!state_.busy() && state_.waiting().empty(),
            "the step ended while an op still waited for its turn or a turn was still running on "
            "some rank");
}

void LocalArbiter::post(int64_t rank, const std::vector<Ready>& ops) {
  const std::lock_guard lock(mutex_);
  bool on_all = false;
  for (const auto& [op, since] : ops) {
    MOE_CHECK(posted_at(rank, op) == 0,
              "rank {} posted op '{}' twice in a step; a rank posts each op once per step", rank,
              graph_.op(op).name);
    posted_at(rank, op) = clock_ns();
    ready_[op.index()] = std::max(ready_[op.index()], since);
    if (++num_posted_[op.index()] < options_.num_ranks) continue;
    state_.posted(op);
    on_all = true;
  }
  if (on_all) choose();
}

void LocalArbiter::begun(int64_t, OpId op) {
  const std::lock_guard lock(mutex_);
  state_.begun(op);
}

/// Chooses the next turn for all members, when the network is free and some transfer may begin.
void LocalArbiter::choose() {
  if (turn_.error) return;
  try {
    const auto transfer = state_.next();
    if (!transfer) return;
    turn_ = {transfer->op, transfer->chunk, std::max(end_, ready_[transfer->op.index()])};
  } catch (const std::exception&) {  // thrown by a policy
    turn_ = {.op = state_.waiting().front(), .error = std::current_exception()};
  }
  end_ = 0;
  std::fill(taken_.begin(), taken_.end(), false);
  std::fill(done_.begin(), done_.end(), false);
  if (options_.chosen && !turn_.error) options_.chosen(turn_);
  turn_on_[schedule_.lane_of[turn_.op.index()].index()].notify_all();
}

/// Whether the turn is on this lane and this rank has not been given it. An error is given to rank
/// 0 only.
bool LocalArbiter::is_for(int64_t rank, LaneId lane) const {
  if (turn_.error ? rank != 0 : !state_.busy()) return false;
  return schedule_.lane_of[turn_.op.index()] == lane && !taken_[index(rank)];
}

Turn LocalArbiter::next(int64_t rank, LaneId lane) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return aborted_ || is_for(rank, lane); };
  Nanoseconds deadline = clock_ns() + timeout_;
  const auto time = [&] {
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
  };
  while (!turn_on_[lane.index()].wait_until(lock, time(), ready)) {
    const OverduePost late = overdue(rank, lane);
    if (late.op.valid() && late.since + timeout_ <= deadline) return missing(late.op);
    deadline = late.since + timeout_;
  }
  if (aborted_) throw Aborted();
  taken_[index(rank)] = true;
  return turn_;
}

std::optional<Turn> LocalArbiter::try_next(int64_t rank, LaneId lane) {
  const std::lock_guard lock(mutex_);
  if (aborted_) throw Aborted();
  if (!is_for(rank, lane)) return std::nullopt;
  taken_[index(rank)] = true;
  return turn_;
}

std::string LocalArbiter::under_way() {
  const std::lock_guard lock(mutex_);
  if (!state_.busy()) return "";
  std::vector<size_t> ranks;
  for (size_t r = 0; r < done_.size(); ++r) {
    if (!done_[r]) ranks.push_back(r);
  }
  return fmt::format("rank{} {} did not finish op {}", ranks.size() == 1 ? "" : "s",
                     fmt::join(ranks, ", "), graph_.op(turn_.op).name);
}

std::optional<Turn> LocalArbiter::late() {
  const std::lock_guard lock(mutex_);
  const OverduePost oldest = overdue(kAny, LaneId());
  if (!oldest.op.valid() || oldest.since + timeout_ > clock_ns()) return std::nullopt;
  return missing(oldest.op);
}

/// Returns the time at which the first rank posted the op; 0 when no rank has.
Nanoseconds LocalArbiter::first_post(OpId op) {
  Nanoseconds first = 0;
  for (int64_t r = 0; r < options_.num_ranks; ++r) {
    const Nanoseconds at = posted_at(r, op);
    if (at != 0 && (first == 0 || at < first)) first = at;
  }
  return first;
}

/// Returns the longest-waiting op that this rank (kAny: any rank) has posted on the lane (an
/// invalid lane: on any) and that some ranks have not posted. The op is invalid when there is none,
/// or while a turn runs.
LocalArbiter::OverduePost LocalArbiter::overdue(int64_t rank, LaneId lane) {
  OverduePost oldest{OpId(), clock_ns()};
  if (state_.busy()) return oldest;
  for (size_t i = 0; i < num_posted_.size(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (num_posted_[i] == 0 || num_posted_[i] == options_.num_ranks) continue;
    if (lane.valid() && schedule_.lane_of[i] != lane) continue;
    const Nanoseconds posted = rank == kAny ? first_post(op) : posted_at(rank, op);
    if (posted == 0) continue;
    const Nanoseconds since = std::max(posted, idle_since_);
    if (since < oldest.since) oldest = {op, since};
  }
  return oldest;
}

/// Returns the error turn of an overdue op: "rank 1 did not post this op within 30 s; rank 1 waits
/// for b1.moe.gate".
Turn LocalArbiter::missing(OpId op) {
  std::vector<int64_t> ranks;
  std::string waits;
  for (int64_t r = 0; r < options_.num_ranks; ++r) {
    if (posted_at(r, op) != 0) continue;
    ranks.push_back(r);
    const std::string what = options_.waits_for ? options_.waits_for(r, op) : "";
    if (!what.empty()) waits += fmt::format("; rank {} waits for {}", r, what);
  }
  const std::string why =
      fmt::format("rank{} {} did not post this op within {} s{}", ranks.size() == 1 ? "" : "s",
                  fmt::join(ranks, ", "), options_.timeout_s, waits);
  return {.op = op, .error = std::make_exception_ptr(RunError(why))};
}

void LocalArbiter::done(int64_t rank, Nanoseconds end) {
  const std::lock_guard lock(mutex_);
  MOE_CHECK(state_.busy() && taken_[index(rank)] && !done_[index(rank)],
            "rank {} reported the end of a turn, but has no turn, or has reported its end already",
            rank);
  end_ = std::max(end_, end);
  done_[index(rank)] = true;
  if (!std::all_of(done_.begin(), done_.end(), [](bool done) { return done; })) return;
  idle_since_ = clock_ns();
  state_.done();
  choose();
}

void LocalArbiter::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  for (std::condition_variable& changed : turn_on_) changed.notify_all();
}

}  // namespace moe
