// Starting threads with a clear error where the machine allows no more, and the CPU time of a
// thread. Which threads exist is not decided here but by the callers in exec/, comm/ and profile/.
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

/// Starts a thread that runs `body`. `what` describes the thread in errors, for instance "lane comm
/// of rank 3". Throws RunError with `what` when the machine allows no more threads.
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

/// Throws RunError unless this process can reserve address space for the stacks of n threads and
/// for the blocks that the allocator takes when each of them first allocates; jemalloc 5.3 crashes
/// if it gets none. what: what the threads are, for instance "the lanes of 4 ranks".
void check_room_for_threads(int64_t n, const std::string& what);

/// CPU time of the calling thread, in nanoseconds.
inline Nanoseconds thread_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

/// Threads of which none runs its body before all have started. The destructor joins them.
class ThreadGroup {
 public:
  /// Starts n threads; thread i runs body(i). name(i) describes it in errors. Throws RunError like
  /// start_thread() and check_room_for_threads(), and then no body has run.
  ThreadGroup(int64_t n, const std::function<std::string(int64_t)>& name,
              const std::function<void(int64_t)>& body) {
    if (n > 0) check_room_for_threads(n, name(0) + " and the others");
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
