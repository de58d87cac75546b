// The state of the machine during a run: its speed, and what others use of it.
#include "engine/exec/results/machine_state.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "engine/base/threads.h"
#include "engine/comm/communicator.h"

namespace moe {
namespace {

TEST_CASE("a process that computes is seen as others' use of the cores, and this one is not") {
  const OthersWatch beside_child;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (;;) {
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  const double beside = beside_child.share();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const double cores = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  CHECK(beside > 0.5 / cores);
  CHECK(beside <= 1);
  const OthersWatch alone;
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  const Nanoseconds begin = clock_ns();
  {
    const ThreadGroup all(
        sysconf(_SC_NPROCESSORS_ONLN), [](int64_t) { return "a core's load"; },
        [begin](int64_t) {
          while (clock_ns() < begin + 600'000'000) {
          }
        });
  }
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double own = static_cast<double>(after.tv_sec - before.tv_sec) +
                     static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9;
  const double share = own * 1e9 / static_cast<double>(clock_ns() - begin) / cores;
  CHECK(share > 0.2);
  CHECK(alone.share() < 1 - share + 0.1);
}

}  // namespace
}  // namespace moe
