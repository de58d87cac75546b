#include "engine/profile/machine_reading.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/base/threads.h"
#include "engine/comm/communicator.h"
#include "engine/exec/results/machine_state.h"
#include "engine/exec/sync.h"
#include "kernels/cpu/blas_buffers.h"

namespace moe {
namespace {

// At the begin, in which clock rates rise and operands get into the caches; nothing is kept of it.
constexpr Nanoseconds kSettling = 100'000'000;
constexpr Nanoseconds kSleep = 1'000'000;

struct Call {
  Nanoseconds end, ns, busy;
};

/// Returns the value below which the share `at` of the values is. Requires: at least one value.
Nanoseconds percentile(std::vector<Nanoseconds> values, double at) {
  const auto n = static_cast<double>(values.size() - 1);
  const auto place = values.begin() + std::lround(at * n);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

std::vector<int64_t> own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int64_t> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  if (cores.empty()) cores.push_back(0);  // more cores than the set has room for
  return cores;
}

/// Binds the calling thread to the core; a machine that refuses that runs it where it likes.
void bind_to(int64_t core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  std::ignore = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

/// Returns how late each of the calling thread's sleeps until `end` ended; at least one.
std::vector<Nanoseconds> sleep_until(Nanoseconds end) {
  wake_promptly();
  std::vector<Nanoseconds> late;
  do {
    const Nanoseconds wanted = clock_ns() + kSleep;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kSleep));
    late.push_back(std::max<Nanoseconds>(0, clock_ns() - wanted));
  } while (clock_ns() < end);
  return late;
}

/// Returns the percentiles of one of the times of these calls. Requires: at least one call.
Percentiles percentiles(const std::vector<Call>& calls, Nanoseconds Call::*time) {
  std::vector<Nanoseconds> all;
  for (const Call& call : calls) all.push_back(call.*time);
  return {percentile(all, 0.1), percentile(all, 0.5), percentile(all, 0.9)};
}

/// Returns the median time of the calls that ended in a part of the reading; 0 if there are none.
double median_of(const std::vector<std::vector<Call>>& cores, Nanoseconds from, Nanoseconds to) {
  std::vector<Nanoseconds> all;
  for (const std::vector<Call>& calls : cores) {
    for (const Call& call : calls) {
      if (call.end >= from && call.end <= to) all.push_back(call.ns);
    }
  }
  return all.empty() ? 0 : static_cast<double>(percentile(all, 0.5));
}

}  // namespace

MachineReading read_machine(double seconds) {
  const std::vector<int64_t> cores = own_cores();
  if (!kernels::reserve_blas_buffers(static_cast<int64_t>(cores.size()))) {
    throw run_error(
        "reading the speed of {} cores needs 128 MiB of address space per core, but this process "
        "cannot reserve it; raise its limit (ulimit -v)",
        cores.size());
  }
  std::vector<std::vector<Call>> calls(cores.size());
  std::vector<Nanoseconds> late;
  const OthersWatch watch;
  const Nanoseconds begin = clock_ns() + kSettling;
  const Nanoseconds end = begin + std::llround(seconds * kNsPerSecond);
  {
    const ThreadGroup all(
        static_cast<int64_t>(cores.size()) + 1,
        [](int64_t i) { return fmt::format("reading {} of the machine", i + 1); },
        [&](int64_t i) {
          const auto core = static_cast<size_t>(i);
          if (core == cores.size()) {
            late = sleep_until(end);
            return;
          }
          bind_to(cores[core]);
          do {
            const Nanoseconds before = thread_cpu_ns();
            const Nanoseconds ns = reference_call_ns(), now = clock_ns();
            if (now >= begin) calls[core].push_back({now, ns, thread_cpu_ns() - before});
          } while (calls[core].empty() || clock_ns() < end);
        });
  }
  MachineReading reading;
  reading.seconds = seconds;
  reading.others = watch.share();
  reading.stolen = std::min(watch.stolen(), reading.others);
  for (size_t i = 0; i < cores.size(); ++i) {
    reading.cores.push_back(
        {cores[i], percentiles(calls[i], &Call::ns), percentiles(calls[i], &Call::busy)});
  }
  const Nanoseconds third = (end - begin) / 3;
  const double first = median_of(calls, begin, begin + third);
  const double last = median_of(calls, end - third, end);
  if (first > 0 && last > 0) reading.drift = last / first - 1;
  reading.late = percentile(late, 0.5);
  reading.very_late = percentile(late, 0.95);
  return reading;
}

double speed_spread(const MachineReading& reading) {
  // The 10th and 90th percentile of a normal distribution are so many standard deviations apart.
  constexpr double kApart = 2.563;
  double sum = 0;
  for (const MachineReading::Core& core : reading.cores) {
    const Percentiles& ns = core.busy;
    sum += static_cast<double>(ns.high - ns.low) / kApart / static_cast<double>(ns.middle);
  }
  return sum / static_cast<double>(reading.cores.size());
}

std::vector<std::string> disturbances(const MachineReading& reading) {
  std::vector<std::string> found;
  const auto add = [&](double value, double most, const std::string& text) {
    if (value > most) found.push_back(text);
  };
  add(reading.others, kMostOthers,
      fmt::format("other processes used {:.0f}% of the cores' time and the hypervisor took "
                  "{:.0f}% (at most {:.0f}% together)",
                  100 * (reading.others - reading.stolen), 100 * reading.stolen,
                  100 * kMostOthers));
  double spread = 0;
  for (const MachineReading::Core& core : reading.cores) {
    spread = std::max(spread, static_cast<double>(core.reference.high) /
                                  static_cast<double>(core.reference.middle));
  }
  add(spread, kMostSpread,
      fmt::format("on a core every tenth call took {:.1f} times the median or more (at most {:g})",
                  spread, kMostSpread));
  add(std::abs(reading.drift), kMostDrift,
      fmt::format("calls changed by {:+.0f}% from the first to the last third (at most {:.0f}%)",
                  100 * reading.drift, 100 * kMostDrift));
  add(static_cast<double>(reading.very_late), static_cast<double>(kMostLate),
      fmt::format("a sleeping thread woke {:.2f} ms late or later once in 20 times (at most {:g})",
                  to_ms(reading.very_late), to_ms(kMostLate)));
  return found;
}

}  // namespace moe
