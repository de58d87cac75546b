// Threads whose start may fail, and the CPU time of one.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/units.h"

namespace moe {

/// Starts a thread for `what`, as "lane comm of rank 3". Throws RunError naming it where the
/// machine gives none.
template <class Body>
std::jthread start_thread(const std::string& what, Body body) {
  try {
    return std::jthread(std::move(body));
  } catch (const std::system_error& e) {
    throw run_error(
        "cannot start the thread for {}: {} (its stack needs address space, see ulimit -v; the "
        "number of threads may be limited, see ulimit -u)",
        what, e.code().message());
  }
}

/// CPU time of the calling thread.
inline Nanoseconds thread_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

/// Threads that begin together or not at all: none runs its body before all of them have started.
/// The destructor joins them.
class ThreadGroup {
 public:
  /// body(i) runs on a thread of its own for each i in [0, n); name(i) says what it is for in
  /// errors. Throws RunError as start_thread() does, and then no body has run.
  ThreadGroup(int64_t n, const std::function<std::string(int64_t)>& name,
              const std::function<void(int64_t)>& body) {
    try {
      for (int64_t i = 0; i < n; ++i) {
        threads_.push_back(start_thread(name(i), [this, body, i] {
          state_.wait(kWaits);
          if (state_ == kRuns) body(i);
        }));
      }
    } catch (const std::exception&) {
      let(kGivesUp);
      throw;
    }
    let(kRuns);
  }

 private:
  enum State { kWaits, kRuns, kGivesUp };
  void let(State state) {
    state_ = state;
    state_.notify_all();
  }

  std::atomic<State> state_{kWaits};
  std::vector<std::jthread> threads_;
};

}  // namespace moe
