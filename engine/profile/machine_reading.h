// How quiet this machine is: runs a fixed piece of work on all cores at once and says what disturbs
// it. `moebench doctor` prints it.
#pragma once

#include <string>
#include <vector>

#include "engine/base/units.h"

namespace moe {

/// The 10th, 50th and 90th percentile of the times of single calls.
struct Percentiles {
  Nanoseconds low, middle, high;
};

struct MachineReading {
  struct Core {
    int64_t number;         // as the operating system counts, from 0
    Percentiles reference;  // of the reference kernel (exec/results/machine_state.h)
    Percentiles busy;       // of its CPU time: without what others took of the core
  };
  std::vector<Core> cores;  // on which this process may run
  double seconds = 0;
  /// The reference kernel's median over all cores in the last third of the reading, divided by that
  /// in the first third, minus 1.
  double drift = 0;
  double others = 0;  // OthersWatch::share(): what other processes used and the hypervisor took
  double stolen = 0;  // the hypervisor's part of it
  /// How late a thread woke that slept beside the others, as a comm lane does: the median and the
  /// 95th percentile.
  Nanoseconds late = 0, very_late = 0;
};

/// Runs the reference kernel for so many seconds on one thread per core, each bound to its core,
/// with one more thread that sleeps for a millisecond at a time. Throws RunError where the machine
/// allows no more threads.
MachineReading read_machine(double seconds);

/// Returns by how much the speed of a core varies from call to call: the standard deviation of the
/// reference kernel's CPU times divided by their median, on the mean of all cores. Calls that lose
/// their core for a while are no slower by it.
double speed_spread(const MachineReading& reading);

/// The bounds within which a machine is quiet enough to time; the bound on others is kMostOthers.
/// The 90th percentile of a core as a multiple of its median. On two quiet cores it was 1.1, beside
/// a build that used 43% of them 1.2, since fewer than one call in ten loses its core; on hosts
/// that slow their guests down calls differ by up to 2.
constexpr double kMostSpread = 1.5;
/// Ops are measured before the run that they predict. A speed that changes more than this between
/// the first and the last third of the reading changes predictions by more than their error in a
/// quiet run.
constexpr double kMostDrift = 0.05;
/// A lane that sleeps during an emulated transfer spins for its last 40 us. Waking half a
/// millisecond later than it should adds the time of 50 KB on a link of 100 MB/s to a transfer.
constexpr Nanoseconds kMostLate = 500'000;

/// Returns what exceeds these bounds, one clause each with value and bound; empty if the machine is
/// quiet enough to time.
std::vector<std::string> disturbances(const MachineReading& reading);

}  // namespace moe
