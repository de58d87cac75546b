// Deadlines of Lua code. One thread, the watchdog, checks all armed deadlines every few
// milliseconds. Arming a deadline in wall-clock time costs only two atomic stores, so every call of
// a policy can have one. How a state is stopped is in limits.h, not here.
#pragma once

#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace moe::lua {

/// Returns the time of the steady clock in nanoseconds.
int64_t steady_ns();

class Watchdog;

/// The deadline of a call. When it passes, the watchdog's thread calls `overdue` once, and if the
/// call still has not returned kGraceNs after that, `ends`, which does not return; if `overdue` is
/// null, it calls `ends` at once. Both must be safe to call from another thread. arm() sets the
/// time, counted from now; before arm() and after disarm() there is no deadline. On the clock
/// kOfThread only the time counts in which the thread that called arm() has a core.
class Deadline {
 public:
  enum class Clock { kWall, kOfThread };
  Deadline(std::shared_ptr<Watchdog> watchdog, std::function<void()> overdue,
           std::function<void()> ends, Clock clock = Clock::kWall);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  void arm(double seconds);
  void disarm() { due_ns_ = 0; }

  /// Stops the clock of a deadline in wall-clock time while something other than the call itself is
  /// working.
  class Pause {
   public:
    explicit Pause(Deadline* deadline);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Deadline* deadline_;  // null if there is no deadline to stop
    int64_t due_ns_ = 0, begin_ns_ = 0;
  };

 private:
  friend class Watchdog;
  void check(int64_t wall_ns);

  static constexpr int64_t kGraceNs = 2'000'000'000;
  std::shared_ptr<Watchdog> watchdog_;
  std::function<void()> overdue_, ends_;
  const Clock clock_;
  std::atomic<clockid_t> thread_{};  // clock of the thread that called arm(), with kOfThread
  std::atomic<int64_t> due_ns_{0};   // 0 if not armed
  // Of the watchdog's thread only: the due time for which `overdue` was called, and when `ends` is.
  int64_t reported_ns_ = 0, ends_ns_ = 0;
};

class Watchdog {
 public:
  Watchdog();
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  /// Makes the watchdog's thread call `poll` at every check from now on; null ends that.
  void poll_with(std::function<void()> poll);
  /// Ends the watchdog's thread while the process forks, since a child has only the thread that
  /// forks; resume() starts it again, in this process and in a child. No deadline may be armed.
  void pause();
  void resume();

 private:
  friend class Deadline;
  void add(Deadline* deadline);
  void remove(Deadline* deadline);  // waits until no check is running
  void watch();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::function<void()> poll_;
  std::vector<Deadline*> deadlines_;
  bool over_ = false;
  std::jthread thread_;
};

}  // namespace moe::lua
