// Turns of several runs in one process: only one of them executes steps at a time, and after a few
// steps the next one does. A machine that becomes slower then meets all of them alike. Each run has
// a thread of its own, which waits here; the runs themselves are in engine/run.h.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace moe {

/// Run i is called by the thread of run i only. begin() and end() once; step() after each of its
/// steps. A run that waits continues as soon as all runs before it have passed on their turn or
/// ended, so a request to stop reaches every run.
class Turns {
 public:
  /// The first turn of a run lasts for its first step, which is the slowest, further turns for
  /// `steps` steps.
  Turns(size_t num_runs, int64_t steps) : steps_(steps), runs_(num_runs) {}

  /// Waits for the run's first turn.
  void begin(size_t run);
  /// Passes the turn on and waits for the next one, if the turn is over.
  void step(size_t run);
  /// Passes the turn on for good.
  void end(size_t run);

 private:
  struct Run {
    int64_t done = 0;  // number of steps
    bool ended = false;
  };
  void pass_on(size_t run);

  const int64_t steps_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Run> runs_;
  size_t current_ = 0;
};

}  // namespace moe
