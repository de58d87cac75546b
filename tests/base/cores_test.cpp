#include "engine/base/cores.h"

#include <pthread.h>

#include <catch2/catch.hpp>
#include <set>

namespace moe {
namespace {

cpu_set_t allowed() {
  cpu_set_t cores;
  pthread_getaffinity_np(pthread_self(), sizeof(cores), &cores);
  return cores;
}

TEST_CASE("each of as many ranks as cores gets a core of its own, until the end of the scope") {
  const cpu_set_t before = allowed();
  const int64_t n = CPU_COUNT(&before);
  std::set<int> taken;
  for (int64_t rank = 0; rank < n; ++rank) {
    const StayOnCore core(rank, n);
    const cpu_set_t now = allowed();
    REQUIRE(CPU_COUNT(&now) == 1);
    const int mine = sched_getcpu();
    CHECK(CPU_ISSET(mine, &now));
    CHECK(CPU_ISSET(mine, &before));
    taken.insert(mine);
  }
  CHECK(static_cast<int64_t>(taken.size()) == n);
  const cpu_set_t after = allowed();
  CHECK(CPU_EQUAL(&before, &after));
}

TEST_CASE("with fewer cores than ranks, or two cores per rank, a lane may run anywhere") {
  const cpu_set_t before = allowed();
  const int64_t n = CPU_COUNT(&before);
  for (const int64_t ranks : {n + 1, n / 2}) {
    if (ranks == 0) continue;
    const StayOnCore core(0, ranks);
    const cpu_set_t now = allowed();
    CHECK(CPU_EQUAL(&before, &now));
  }
}

}  // namespace
}  // namespace moe
