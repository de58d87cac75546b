// What a reading of the machine says, and which readings are of a quiet one.
#include "engine/profile/machine_reading.h"

#include <sched.h>

#include <catch2/catch.hpp>

#include "engine/exec/results/machine_state.h"

namespace moe {
namespace {

using Catch::Matchers::Contains;

/// A reading in which each value is at its bound.
MachineReading at_bounds() {
  return {.cores = {{0, {90, 100, 100}, {}}, {1, {90, 100, 150}, {}}},
          .seconds = 3,
          .drift = -kMostDrift,
          .others = kMostOthers,
          .stolen = kMostOthers,
          .late = 100,
          .very_late = kMostLate};
}

TEST_CASE("a machine is quiet within the bounds, and each value beyond its own is named") {
  CHECK(kMostSpread == 1.5);
  CHECK(disturbances(at_bounds()).empty());
  const auto only = [](auto change) {
    MachineReading reading = at_bounds();
    change(reading);
    const std::vector<std::string> found = disturbances(reading);
    REQUIRE(found.size() == 1);
    return found[0];
  };
  const auto others = [](MachineReading& r) { r.others = 0.25, r.stolen = 0.04; };
  CHECK_THAT(only(others), Contains("used 21%") && Contains("hypervisor took 4%"));
  CHECK_THAT(only([](MachineReading& r) { r.cores[1].reference.high = 160; }),
             Contains("1.6 times"));
  CHECK_THAT(only([](MachineReading& r) { r.drift = 0.08; }), Contains("+8%"));
  CHECK_THAT(only([](MachineReading& r) { r.drift = -0.08; }), Contains("-8%"));
  CHECK_THAT(only([](MachineReading& r) { r.very_late = 2 * kMostLate; }), Contains("1.00 ms"));
}

TEST_CASE("a speed that varies more has a larger spread, on the mean of the cores") {
  // Calls that lost their core took longer and used no more CPU time.
  const MachineReading even = {.cores = {{0, {100, 100, 900}, {100, 100, 100}}}};
  CHECK(speed_spread(even) == 0);
  // One standard deviation of a normal distribution is 1 / 2.563 of the distance.
  const MachineReading uneven = {
      .cores = {{0, {900, 1000, 1100}, {900, 1000, 1100}}, {1, {}, {1000, 1000, 1000}}}};
  CHECK(speed_spread(uneven) == Approx(0.2 / 2.563 / 2));
}

TEST_CASE("a reading has each core on which this process may run, and its percentiles in order") {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  const MachineReading reading = read_machine(0.2);
  CHECK(reading.cores.size() == static_cast<size_t>(CPU_COUNT(&set)));
  for (const MachineReading::Core& core : reading.cores) {
    CHECK(CPU_ISSET(static_cast<size_t>(core.number), &set));
    for (const Percentiles& ns : {core.reference, core.busy}) {
      CHECK((0 < ns.low && ns.low <= ns.middle && ns.middle <= ns.high));
    }
  }
  CHECK(reading.drift > -1);
  CHECK((0 <= reading.stolen && reading.stolen <= reading.others && reading.others <= 1));
  CHECK((0 <= reading.late && reading.late <= reading.very_late));
  // Threads of the reading alone were bound to cores.
  cpu_set_t after;
  REQUIRE(sched_getaffinity(0, sizeof after, &after) == 0);
  CHECK(CPU_EQUAL(&set, &after));
}

}  // namespace
}  // namespace moe
