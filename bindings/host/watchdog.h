// Wall deadlines. One thread looks at all armed deadlines every few milliseconds; arming costs two
// atomic stores, so a deadline may stand around every call of a policy.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace moe::lua {

/// Steady clock, nanoseconds.
int64_t steady_ns();

class Watchdog;

/// What happens when a call takes too long: `overdue` is called once on the watchdog's thread, and
/// where the call still has not returned kGraceNs later, `ends` (which does not return); at once
/// where `overdue` is null. Both must be safe to call from another thread. Watched from
/// construction to destruction.
class Deadline {
 public:
  Deadline(std::shared_ptr<Watchdog> watchdog, std::function<void()> overdue,
           std::function<void()> ends);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  void arm(double seconds);
  void disarm() { due_ns_ = 0; }

  /// Holds the time still while something else than the call itself works.
  class Pause {
   public:
    explicit Pause(Deadline* deadline);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Deadline* deadline_;  // may be null: nothing to hold
    int64_t due_ns_ = 0, begin_ns_ = 0;
  };

 private:
  friend class Watchdog;
  void check(int64_t now_ns);

  static constexpr int64_t kGraceNs = 2'000'000'000;
  std::shared_ptr<Watchdog> watchdog_;
  std::function<void()> overdue_, ends_;
  std::atomic<int64_t> due_ns_{0};  // 0: not armed
  int64_t reported_ns_ = 0;         // the due time that was reported; the watchdog's thread only
};

class Watchdog {
 public:
  Watchdog();
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  /// `poll` is called at every look from now on, on the watchdog's thread; null: no longer.
  void poll_with(std::function<void()> poll);

 private:
  friend class Deadline;
  void add(Deadline* deadline);
  void remove(Deadline* deadline);  // waits until no look is under way
  void watch();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::function<void()> poll_;
  std::vector<Deadline*> deadlines_;
  bool over_ = false;
  std::jthread thread_;
};

}  // namespace moe::lua
