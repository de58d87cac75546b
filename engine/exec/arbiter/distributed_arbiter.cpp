#include "engine/exec/arbiter/distributed_arbiter.h"

#include <chrono>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/comm/local/backoff.h"
#include "engine/exec/sync.h"

namespace moe {
namespace {

// Interval between the watchdog's checks, and between wake-ups of a lane that expects no turn.
constexpr Nanoseconds kLookEvery = 10'000'000;

/// A message of a rank to rank 0. One control message holds one or several of them, as they are in
/// memory.
struct MemberEvent {
  enum Kind : int32_t { kPost, kBegun, kDone };
  Kind kind = kPost;
  OpId op;
  Nanoseconds time = 0;  // kPost: ready since; kDone: end of the transfer
};
/// A message of rank 0 to the other ranks.
struct TurnMessage {
  OpId op;
  int64_t chunk = 0;
  Nanoseconds since = 0;
};

template <class T>
std::string bytes_of(const std::vector<T>& events) {
  return {reinterpret_cast<const char*>(events.data()), events.size() * sizeof(T)};
}

template <class T>
std::vector<T> events_of(const std::string& message) {
  MOE_CHECK(!message.empty() && message.size() % sizeof(T) == 0,
            "an arbiter's message has {} bytes, but must have one or more entries of {} bytes each",
            message.size(), sizeof(T));
  std::vector<T> events(message.size() / sizeof(T));
  std::memcpy(events.data(), message.data(), message.size());
  return events;
}

}  // namespace

DistributedArbiter::DistributedArbiter(const Graph& graph, const Schedule& schedule,
                                       const Arbiter& lanes, int64_t number, Processes& processes,
                                       LocalArbiter::Options options)
    : graph_(graph),
      schedule_(schedule),
      number_(number),
      timeout_s_(options.timeout_s),
      processes_(processes),
      posted_(schedule.lanes.size()) {
  if (!processes.is_root()) return;
  options.chosen = [this](const Turn& turn) { send_turn(turn); };
  all_ = std::make_unique<LocalArbiter>(graph, schedule, lanes, std::move(options));
}

/// No other process posts before this call on rank 0: it first receives the start of the step,
/// which rank 0 sends after this call.
void DistributedArbiter::start_step() {
  if (channel_ == nullptr) channel_ = &processes_.control_channel(number_);
  if (all_) all_->start_step();
}

/// On rank 0, reads notes until all ranks have finished the last turn; so no control message is
/// left for the next step. Throws RunError after the timeout. Does nothing on other ranks.
void DistributedArbiter::end_step() {
  if (!all_) return;
  const auto limit = static_cast<Nanoseconds>(std::min(timeout_s_, 1e9) * kNsPerSecond);
  const Nanoseconds deadline = clock_ns() + limit;
  Backoff backoff;
  for (;;) {
    read_messages();
    const std::string left = all_->under_way();
    if (left.empty()) break;
    if (processes_.failed()) throw RunError(processes_.reason());
    if (clock_ns() > deadline)
      throw run_error("rank 0 finished the step and waited for the other ranks, but {} within {} s",
                      left, timeout_s_);
    backoff.rest();
  }
  all_->end_step();
}

void DistributedArbiter::post(int64_t rank, const std::vector<Ready>& ops) {
  {
    const std::lock_guard lock(mutex_);
    for (const Ready& ready : ops) ++posted_[schedule_.lane_of[ready.op.index()].index()];
  }
  if (all_) {
    read_messages();  // so that the next turn is chosen with all notes that have arrived
    all_->post(rank, ops);
  } else {
    std::vector<MemberEvent> events;
    for (const auto& [op, since] : ops) {
      events.push_back({MemberEvent::kPost, op, processes_.to_common(since)});
    }
    channel_->send(0, bytes_of(events));
  }
  changed_.notify_all();
}

void DistributedArbiter::begun(int64_t rank, OpId op) {
  if (all_) return all_->begun(rank, op);
  channel_->send(0, bytes_of(std::vector<MemberEvent>{{MemberEvent::kBegun, op, 0}}));
}

void DistributedArbiter::done(int64_t rank, Nanoseconds end) {
  OpId op;
  {
    const std::lock_guard lock(mutex_);
    MOE_CHECK(
        taken_,
        "rank {} reported the end of a turn, but has no turn, or has reported its end already",
        rank);
    op = taken_->op;
    const bool over = taken_->chunk + 1 == num_chunks(graph_, schedule_, op);
    if (over) --posted_[schedule_.lane_of[op.index()].index()];
    taken_.reset();
  }
  if (all_) return all_->done(rank, end);
  channel_->send(
      0, bytes_of(std::vector<MemberEvent>{{MemberEvent::kDone, op, processes_.to_common(end)}}));
}

/// Sends a turn to the other ranks. Called under the lock of rank 0's LocalArbiter, so that turns
/// are sent in the order in which it chose them.
void DistributedArbiter::send_turn(const Turn& turn) {
  const std::vector<TurnMessage> message = {{turn.op, turn.chunk, turn.since}};
  for (int64_t r = 1; r < processes_.size(); ++r) channel_->send(r, bytes_of(message));
}

void DistributedArbiter::read_messages() {
  const std::lock_guard lock(reading_);
  while (const auto message = channel_->read()) handle(message->peer, message->text);
}

void DistributedArbiter::handle(int64_t rank, const std::string& text) {
  if (!all_) {
    for (const TurnMessage& message : events_of<TurnMessage>(text)) {
      const std::lock_guard lock(mutex_);
      MOE_CHECK(!received_ && !taken_,
                "a turn of op '{}' arrived, but must arrive only after this rank has ended the "
                "previous turn",
                graph_.op(message.op).name);
      received_ = Turn{message.op, message.chunk, processes_.from_common(message.since)};
    }
    return;
  }
  std::vector<Ready> posts;
  for (const MemberEvent& event : events_of<MemberEvent>(text)) {
    if (event.kind == MemberEvent::kPost) posts.push_back({event.op, event.time});
    if (event.kind == MemberEvent::kBegun) all_->begun(rank, event.op);
    if (event.kind != MemberEvent::kDone) continue;
    const auto turn = all_->try_next(rank, schedule_.lane_of[event.op.index()]);
    MOE_CHECK(turn && turn->op == event.op,
              "rank {} reported the end of op '{}', but the current turn is not of this op, or "
              "this rank has ended it already",
              rank, graph_.op(event.op).name);
    all_->done(rank, event.time);
  }
  if (!posts.empty()) all_->post(rank, posts);
}

/// On rank 0 the watchdog checks the posts of all ranks, whichever lane's thread calls.
std::optional<Turn> DistributedArbiter::try_next(int64_t rank, LaneId lane) {
  read_messages();
  if (processes_.failed()) throw RunError(processes_.reason());
  if (all_ && may_look()) {
    if (auto late = all_->late()) return late;
  }
  return take(rank, lane);
}

std::optional<Turn> DistributedArbiter::take(int64_t rank, LaneId lane) {
  std::optional<Turn> turn;
  if (all_) turn = all_->try_next(rank, lane);
  const std::lock_guard lock(mutex_);
  if (!all_ && received_ && schedule_.lane_of[received_->op.index()] == lane) turn.swap(received_);
  if (turn) taken_ = turn;
  return turn;
}

bool DistributedArbiter::may_look() {
  const std::lock_guard lock(mutex_);
  const Nanoseconds now = clock_ns();
  if (now < next_look_) return false;
  next_look_ = now + kLookEvery;
  return true;
}

/// A lane for which this rank has posted nothing gets no turn: its thread sleeps until the rank
/// posts an op on it. At intervals the thread wakes to check for failures and, on rank 0, for posts
/// of the other ranks.
Turn DistributedArbiter::next(int64_t rank, LaneId lane) {
  Backoff backoff;
  for (;;) {
    if (auto turn = try_next(rank, lane)) return *turn;
    std::unique_lock lock(mutex_);
    if (aborted_) throw Aborted();
    int64_t& posted = posted_[lane.index()];
    if (posted > 0) {
      lock.unlock();
      backoff.rest();
    } else {
      changed_.wait_for(lock, std::chrono::nanoseconds(kLookEvery),
                        [&] { return aborted_ || posted > 0; });
      backoff = Backoff();
    }
  }
}

void DistributedArbiter::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
}

std::vector<std::unique_ptr<LaneArbiter>> make_lane_arbiters(
    const Plan& plan, const RunOptions& options, int64_t num_members,
    const std::function<std::string(int64_t rank, OpId op)>& waits_for) {
  std::vector<std::unique_ptr<LaneArbiter>> made;
  for (const Arbiter& lanes : arbiters(plan.schedule)) {
    LocalArbiter::Options how = {num_members, options.timeout_s * options.dilation(),
                                 options.policies.choose, waits_for};
    if (options.processes == nullptr) {
      made.push_back(std::make_unique<LocalArbiter>(plan.graph, plan.schedule, lanes, how));
      continue;
    }
    how.num_ranks = options.processes->size();
    made.push_back(std::make_unique<DistributedArbiter>(plan.graph, plan.schedule, lanes,
                                                        static_cast<int64_t>(made.size()),
                                                        *options.processes, std::move(how)));
  }
  return made;
}

}  // namespace moe
