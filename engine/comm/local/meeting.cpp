#include "engine/comm/local/meeting.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "engine/base/errors.h"
#include "engine/base/index.h"

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

}  // namespace

Meeting::Meeting(const Members& members, double timeout_s)
    : who_(members),
      timeout_s_(std::min(timeout_s, kLongestTimeout)),
      requests_(index(members.size)),
      members_(index(members.size)),
      transfer_(members) {}

CommTimes Meeting::join(int64_t member, const Request& request) {
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

void Meeting::enter(int64_t member, const Request& request) {
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

void Meeting::open() {
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

void Meeting::await_open(Lock& lock, int64_t member, uint64_t turn) {
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

void Meeting::await_done(uint64_t turn) {
  if (spin_until(done_, turn, kFinishSpin)) return;
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return done_.load(std::memory_order_acquire) >= turn; });
}

void Meeting::fail_here(const std::string& reason, std::vector<int64_t> missing) {
  failed_ = true;
  reason_ = reason;
  changed_.notify_all();
  throw Failure{reason, true, std::move(missing)};
}

void Meeting::time_out(int64_t member) {
  std::vector<int64_t> missing;
  for (size_t r = 0; r < members_.size(); ++r) {
    if (!members_[r].arrived) missing.push_back(who_.rank(static_cast<int64_t>(r)));
  }
  fail_here(fmt::format("rank {}: {}: rank{} {} did not arrive in {} s", who_.rank(member),
                        describe(requests_[index(member)]), missing.size() == 1 ? "" : "s",
                        fmt::join(missing, ", "), timeout_s_),
            missing);
}

void Meeting::fail(const std::string& reason) {
  const Lock lock(mutex_);
  if (!failed_) {
    failed_ = true;
    reason_ = reason;
  }
  changed_.notify_all();
}

Meeting::MemberState Meeting::state_of(int64_t member) {
  const Lock lock(mutex_);
  const Member& m = members_[index(member)];
  if (m.came == 0) return {};
  const Nanoseconds left = m.left.load(std::memory_order_relaxed);
  return {describe(requests_[index(member)]), left == 0, left == 0 ? m.came : left};
}

}  // namespace moe
