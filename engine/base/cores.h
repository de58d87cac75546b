// Which cores the threads of ranks run on. Left to itself, the system moves a rank's compute thread
// to another core now and then, since its comm threads wake beside it. On a machine with as many
// cores as ranks, equal steps of 12 ms then differ by 50% of their median, and with every rank on a
// core of its own by 10 to 20% (two cores of a shared host, 11 times 33 steps each).
#pragma once

#include <sched.h>

#include <cstdint>

namespace moe {

/// Keeps the calling thread, a lane of a rank, on the rank's core until the end of the scope. Does
/// nothing if this process may use fewer cores than it has ranks, or two or more per rank (then a
/// lane that is moved finds an idle one, and other processes may use the first ones), or if the
/// system refuses.
class StayOnCore {
 public:
  StayOnCore(int64_t rank, int64_t num_ranks);
  ~StayOnCore();
  StayOnCore(const StayOnCore&) = delete;
  StayOnCore& operator=(const StayOnCore&) = delete;

 private:
  cpu_set_t before_;
  bool changed_ = false;
};

}  // namespace moe
