#include "bindings/host/watchdog.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "engine/base/threads.h"

namespace moe::lua {

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

namespace {

// The time of a thread's clock; 0 if the thread has ended.
int64_t time_of(clockid_t thread) {
  timespec time{};
  return clock_gettime(thread, &time) == 0 ? time.tv_sec * 1'000'000'000 + time.tv_nsec : 0;
}

}  // namespace

Deadline::Deadline(std::shared_ptr<Watchdog> watchdog, std::function<void()> overdue,
                   std::function<void()> ends, Clock clock)
    : watchdog_(std::move(watchdog)),
      overdue_(std::move(overdue)),
      ends_(std::move(ends)),
      clock_(clock) {
  watchdog_->add(this);
}

Deadline::~Deadline() {
  watchdog_->remove(this);
}

void Deadline::arm(double seconds) {
  int64_t now = steady_ns();
  if (clock_ == Clock::kOfThread) {
    clockid_t thread{};
    pthread_getcpuclockid(pthread_self(), &thread);
    now = time_of(thread);
    thread_ = thread;
  }
  due_ns_ = now + static_cast<int64_t>(seconds * 1e9);
}

Deadline::Pause::Pause(Deadline* deadline) : deadline_(deadline) {
  if (deadline_ == nullptr) return;
  begin_ns_ = steady_ns();
  due_ns_ = deadline_->due_ns_.exchange(0);
}

Deadline::Pause::~Pause() {
  if (due_ns_ != 0) deadline_->due_ns_ = due_ns_ + (steady_ns() - begin_ns_);
}

void Deadline::check(int64_t wall_ns) {
  const int64_t due = due_ns_;
  if (due == 0) return;
  const int64_t now_ns = clock_ == Clock::kWall ? wall_ns : time_of(thread_);
  if (now_ns < due) return;
  if (overdue_ && due != reported_ns_) {
    reported_ns_ = due;
    ends_ns_ = now_ns + kGraceNs;
    overdue_();
  } else if (!overdue_ || now_ns >= ends_ns_) {
    ends_();
  }
}

Watchdog::Watchdog() {
  resume();
}

Watchdog::~Watchdog() {
  pause();
}

void Watchdog::pause() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::resume() {
  over_ = false;
  thread_ = start_thread("the deadlines of Lua code", [this] { watch(); });
}

void Watchdog::poll_with(std::function<void()> poll) {
  const std::lock_guard lock(mutex_);
  poll_ = std::move(poll);
}

void Watchdog::add(Deadline* deadline) {
  const std::lock_guard lock(mutex_);
  deadlines_.push_back(deadline);
}

void Watchdog::remove(Deadline* deadline) {
  const std::lock_guard lock(mutex_);
  std::erase(deadlines_, deadline);
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    wake_.wait_for(lock, std::chrono::milliseconds(10));
    const int64_t now = steady_ns();
    for (Deadline* deadline : deadlines_) deadline->check(now);
    if (poll_) poll_();
  }
}

}  // namespace moe::lua
