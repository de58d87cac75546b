#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/base/threads.h"
#include "engine/comm/communicator.h"
#include "engine/comm/local/transfer.h"

namespace moe {
namespace {

// How long a member spins before it sleeps, until the others have arrived and until the transfer is
// done. A wake-up on another core takes 20 to 30 us. At the end of a transfer, a peer that is
// working finishes sooner than that; a peer that arrives late is usually late by far more.
constexpr Nanoseconds kArrivalSpin = 5'000;
constexpr Nanoseconds kFinishSpin = 30'000;
// A transfer of up to this size is copied by the last member to arrive, before it wakes the others.
constexpr Bytes kAloneBytes = 32 << 10;
constexpr double kLongestTimeout = 1e9;  // in seconds; in nanoseconds it fits in an int64

bool spin_until(const std::atomic<uint64_t>& turns, uint64_t turn, Nanoseconds limit) {
  const Nanoseconds until = clock_ns() + limit;
  do {
    for (int i = 0; i < 16; ++i) {
      if (turns.load(std::memory_order_acquire) >= turn) return true;
      __builtin_ia32_pause();
    }
  } while (clock_ns() < until);
  return false;
}

/// The meeting of a group's members on one lane, for one collective after the other. Every member
/// arrives with a request; the last one opens the transfer; every member that is awake works on the
/// transfer; all leave when it is done. A waiting member spins briefly (a peer that is running
/// comes within microseconds) and then sleeps on a condition variable, so that the core is free for
/// compute. The copying itself is in transfer.h. After a failure no transfer opens any more. A
/// failure never interrupts an open transfer: a member that left early might free memory that its
/// peers still copy.
class Meeting {
 public:
  /// Thrown by join().
  struct Failure {
    std::string reason;
    bool found_here;               // false: fail() or an error of another member ended the wait
    std::vector<int64_t> missing;  // if the watchdog ended it: the ranks that did not arrive
  };
  /// The call that a member is making in this meeting, or made last.
  struct MemberState {
    std::string what;  // "" when it never called
    bool inside = false;
    Nanoseconds since = 0;  // when it arrived or left
  };

  Meeting(const Members& members, double timeout_s)
      : who_(members),
        timeout_s_(std::min(timeout_s, kLongestTimeout)),
        requests_(index(members.size)),
        members_(index(members.size)),
        transfer_(members) {}

  /// Takes part in one collective; returns when all members have all data of the collective. Throws
  /// Failure when calls do not match, a member is late, or fail() was called. Requires: one call at
  /// a time for each member; request.pieces has entries for all members.
  CommTimes join(int64_t member, const Request& request) {
    Lock lock(mutex_);
    const uint64_t turn = opened_.load(std::memory_order_relaxed) + 1;
    enter(member, request);
    if (num_arrived_ == members_.size()) {
      open();
      lock.unlock();
      if (transfer_.empty() || transfer_.bytes() > kAloneBytes) changed_.notify_all();
    } else {
      await_open(lock, member, turn);
    }
    if (transfer_.work(member)) {
      lock.lock();
      done_.store(turn, std::memory_order_release);
      lock.unlock();
      changed_.notify_all();
    }
    await_done(turn);
    const Nanoseconds end = clock_ns();
    members_[index(member)].left.store(end, std::memory_order_relaxed);
    return {request.post, begin_, end};
  }

  const Members& members() const { return who_; }
  void fail(const std::string& reason) {
    const Lock lock(mutex_);
    if (!failed_) {
      failed_ = true;
      reason_ = reason;
    }
    changed_.notify_all();
  }

  MemberState state_of(int64_t member) {
    const Lock lock(mutex_);
    const Member& m = members_[index(member)];
    if (m.came == 0) return {};
    const Nanoseconds left = m.left.load(std::memory_order_relaxed);
    return {describe(requests_[index(member)]), left == 0, left == 0 ? m.came : left};
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Member {
    bool arrived = false;  // for the next transfer
    Nanoseconds came = 0;
    std::atomic<Nanoseconds> left{0};  // 0 while it is in the meeting
  };

  void enter(int64_t member, const Request& request) {
    if (failed_) throw Failure{reason_, false, {}};
    for (size_t other = 0; other < members_.size(); ++other) {
      if (!members_[other].arrived) continue;
      const std::string why = mismatch(who_.rank(member), request,
                                       who_.rank(static_cast<int64_t>(other)), requests_[other]);
      if (!why.empty()) fail_here(why);
      break;  // one comparison is enough: the members that arrived before match
    }
    Member& me = members_[index(member)];
    requests_[index(member)] = request;
    me.arrived = true;
    me.came = clock_ns();
    me.left.store(0, std::memory_order_relaxed);
    ++num_arrived_;
  }

  void open() {
    try {
      transfer_.prepare(requests_);
    } catch (const RunError& error) {
      fail_here(error.what());
    }
    begin_ = 0;
    for (const Request& r : requests_) begin_ = std::max(begin_, r.post);
    for (Member& m : members_) m.arrived = false;
    num_arrived_ = 0;
    const uint64_t turn = opened_.load(std::memory_order_relaxed) + 1;
    if (transfer_.empty()) done_.store(turn, std::memory_order_release);
    opened_.store(turn, std::memory_order_release);
  }

  void await_open(Lock& lock, int64_t member, uint64_t turn) {
    lock.unlock();
    if (spin_until(opened_, turn, kArrivalSpin)) return;
    lock.lock();
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::nanoseconds(static_cast<int64_t>(timeout_s_ * kNsPerSecond));
    const auto is_open = [&] { return opened_.load(std::memory_order_acquire) >= turn; };
    const bool in_time = changed_.wait_until(lock, deadline, [&] { return is_open() || failed_; });
    if (!is_open()) {
      if (!in_time) time_out(member);
      throw Failure{reason_, false, {}};
    }
    lock.unlock();
  }

  void await_done(uint64_t turn) {
    if (spin_until(done_, turn, kFinishSpin)) return;
    Lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.load(std::memory_order_acquire) >= turn; });
  }

  [[noreturn]] void fail_here(const std::string& reason, std::vector<int64_t> missing = {}) {
    failed_ = true;
    reason_ = reason;
    changed_.notify_all();
    throw Failure{reason, true, std::move(missing)};
  }

  [[noreturn]] void time_out(int64_t member) {
    std::vector<int64_t> missing;
    for (size_t r = 0; r < members_.size(); ++r) {
      if (!members_[r].arrived) missing.push_back(who_.rank(static_cast<int64_t>(r)));
    }
    fail_here(fmt::format("rank {}: {}: rank{} {} did not arrive in {} s", who_.rank(member),
                          describe(requests_[index(member)]), missing.size() == 1 ? "" : "s",
                          fmt::join(missing, ", "), timeout_s_),
              missing);
  }

  const Members who_;
  const double timeout_s_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. While a transfer is open, requests_ does not change, and the threads that
  // work on the transfer read it without the lock.
  std::vector<Request> requests_;
  std::vector<Member> members_;
  size_t num_arrived_ = 0;
  bool failed_ = false;
  std::string reason_;
  // Set by the member that opens the transfer, before it increases opened_.
  Transfer transfer_;
  Nanoseconds begin_ = 0;
  std::atomic<uint64_t> opened_{0};  // number of transfers that were opened
  std::atomic<uint64_t> done_{0};    // number of transfers that are complete
};

}  // namespace

Nanoseconds clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Nanoseconds Communicator::take_post() {
  const Nanoseconds now = clock_ns(), at = posted_at_;
  posted_at_ = 0;
  return at > 0 ? std::min(at, now) : now;
}

CommTimes Communicator::nothing() {
  const Nanoseconds at = take_post();
  return {at, at, at, thread_cpu_ns()};
}

CommTimes Communicator::post(Request request) {
  request.post = take_post();
  return call(request);
}

CommTimes Communicator::all_to_all(const std::string& what, const void* send, void* receive,
                                   const Pieces& pieces) {
  const size_t n = static_cast<size_t>(size() * pieces.groups);
  MOE_CHECK(pieces.send_offset.size() == n && pieces.send_bytes.size() == n &&
                pieces.receive_offset.size() == n && pieces.receive_bytes.size() == n,
            "all_to_all: Pieces has {} send_offset, {} send_bytes, {} receive_offset and {} "
            "receive_bytes, but must have {} of each, for {} ranks and {} groups",
            pieces.send_offset.size(), pieces.send_bytes.size(), pieces.receive_offset.size(),
            pieces.receive_bytes.size(), n, size(), pieces.groups);
  return post({CallKind::kAllToAll, what, send, receive, 0, 0, &pieces});
}

Communicator& Communicator::group(const Group& group) {
  const Group resolved = resolve(group, size(), "communicator");
  if (resolved.size == size()) return *this;
  return made(among({resolved.size, resolved.member(rank(), 0), resolved.stride}));
}

Communicator& Communicator::pair(int64_t distance) {
  const int64_t other = rank() + distance;
  MOE_CHECK(distance != 0 && other >= 0 && other < size(),
            "Communicator::pair(): rank {} + {} must be another of {} ranks", rank(), distance,
            size());
  return made(among({2, std::min(rank(), other), std::abs(distance)}));
}

Communicator& Communicator::made(Communicator& members) {
  members.posted_at_ = std::exchange(posted_at_, 0);
  return members;
}

std::string describe(const Request& request) {
  return fmt::format("{} {}", name_of(request.kind), request.what);
}

Bytes element_bytes(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduceF32:
    case CallKind::kReduceScatterF32:
      return sizeof(float);
    case CallKind::kAllReduceF64:
    case CallKind::kReduceScatterF64:
      return sizeof(double);
    default:
      return 1;
  }
}

struct InProcessWorld::Impl {
  class Member;
  /// The meeting of one group on one lane.
  struct GroupLane {
    GroupLane(int64_t lane, const Members& members, double timeout_s)
        : lane(lane), meeting(members, timeout_s) {}
    const int64_t lane;
    Meeting meeting;
  };

  Impl(int64_t num_ranks, int64_t num_lanes, double timeout_s);
  /// Returns the GroupLane of these members on the lane; creates it if needed.
  GroupLane& group_lane(int64_t lane, const Members& members);
  CommTimes call(GroupLane& group_lane, int64_t number, const Request& request);
  void abort(const std::string& reason);
  std::string whereabouts(int64_t rank);

  const int64_t num_ranks;
  const double timeout_s;
  std::vector<std::unique_ptr<Member>> members;  // [lane * num_ranks + rank]
  std::mutex mutex;                              // guards the members below
  std::deque<GroupLane> group_lanes;
  // The reason of the first failure; calls on a GroupLane that is created later fail with it too.
  std::optional<std::string> aborted;
};

/// The communicator of one rank on one lane, as member `number` of a GroupLane.
class InProcessWorld::Impl::Member final : public Communicator {
 public:
  Member(Impl& world, GroupLane& group_lane, int64_t number)
      : world_(world), group_lane_(group_lane), number_(number) {}

  int64_t rank() const override { return number_; }
  int64_t size() const override { return group_lane_.meeting.members().size; }
  CommTimes call(const Request& request) override {
    return world_.call(group_lane_, number_, request);
  }

  Communicator& among(const Members& who) override {
    MOE_CHECK(size() == world_.num_ranks,
              "Communicator::group() must be called on the communicator of all {} ranks, but was "
              "called on that of a group of {}",
              world_.num_ranks, size());
    for (const auto& made : subgroups_) {
      if (made->group_lane_.meeting.members() == who) return *made;
    }
    subgroups_.push_back(std::make_unique<Member>(world_, world_.group_lane(group_lane_.lane, who),
                                                  (number_ - who.first) / who.stride));
    return *subgroups_.back();
  }

 private:
  Impl& world_;
  GroupLane& group_lane_;
  const int64_t number_;
  std::vector<std::unique_ptr<Member>> subgroups_;
};

InProcessWorld::Impl::Impl(int64_t num_ranks, int64_t num_lanes, double timeout_s)
    : num_ranks(num_ranks), timeout_s(timeout_s) {
  for (int64_t lane = 0; lane < num_lanes; ++lane) {
    GroupLane& all = group_lane(lane, {num_ranks});
    for (int64_t r = 0; r < num_ranks; ++r) {
      members.push_back(std::make_unique<Member>(*this, all, r));
    }
  }
}

InProcessWorld::Impl::GroupLane& InProcessWorld::Impl::group_lane(int64_t lane,
                                                                  const Members& who) {
  const std::lock_guard lock(mutex);
  for (GroupLane& group_lane : group_lanes) {
    if (group_lane.lane == lane && group_lane.meeting.members() == who) return group_lane;
  }
  GroupLane& made = group_lanes.emplace_back(lane, who, timeout_s);
  if (aborted) made.meeting.fail(*aborted);
  return made;
}

CommTimes InProcessWorld::Impl::call(GroupLane& group_lane, int64_t number,
                                     const Request& request) {
  try {
    return group_lane.meeting.join(number, request);
  } catch (const Meeting::Failure& failure) {
    if (!failure.found_here) {
      throw run_error("rank {}: {}: stopped: {}", group_lane.meeting.members().rank(number),
                      describe(request), failure.reason);
    }
    std::string reason = failure.reason;
    for (const int64_t r : failure.missing) reason += fmt::format("; {}", whereabouts(r));
    abort(reason);
    throw RunError(reason);
  }
}

void InProcessWorld::Impl::abort(const std::string& reason) {
  const std::lock_guard lock(mutex);
  if (!aborted) aborted = reason;
  for (GroupLane& group_lane : group_lanes) group_lane.meeting.fail(reason);
}

std::string InProcessWorld::Impl::whereabouts(int64_t rank) {
  const Nanoseconds now = clock_ns();
  const auto seconds = [&](Nanoseconds since) { return static_cast<double>(now - since) / 1e9; };
  std::string waits;
  Meeting::MemberState last;
  int64_t last_lane = 0;
  const std::lock_guard lock(mutex);
  for (GroupLane& group_lane : group_lanes) {
    const Members& who = group_lane.meeting.members();
    const int64_t number = (rank - who.first) / who.stride;
    if (rank < who.first || number >= who.size || who.rank(number) != rank) continue;
    const Meeting::MemberState p = group_lane.meeting.state_of(number);
    if (p.inside) {
      waits += fmt::format("{}in {} on lane {} for {:.3g} s", waits.empty() ? "" : " and ", p.what,
                           group_lane.lane, seconds(p.since));
    } else if (p.since > last.since) {
      last = p;
      last_lane = group_lane.lane;
    }
  }
  if (!waits.empty()) return fmt::format("rank {} is {}", rank, waits);
  if (last.since == 0) return fmt::format("rank {} has made no call yet", rank);
  return fmt::format("rank {} left {} on lane {} {:.3g} s ago", rank, last.what, last_lane,
                     seconds(last.since));
}

InProcessWorld::InProcessWorld(int64_t num_ranks, int64_t num_lanes, Options options)
    : impl_(std::make_unique<Impl>(num_ranks, num_lanes, options.timeout_s)) {
  MOE_CHECK(num_ranks > 0 && num_lanes > 0,
            "InProcessWorld: num_ranks = {} and num_lanes = {}, but both must be at least 1",
            num_ranks, num_lanes);
}

InProcessWorld::~InProcessWorld() = default;

Communicator& InProcessWorld::comm(int64_t rank, int64_t lane) {
  return *impl_->members[static_cast<size_t>(lane * impl_->num_ranks + rank)];
}

void InProcessWorld::abort(const std::string& reason) {
  impl_->abort(reason);
}

}  // namespace moe
