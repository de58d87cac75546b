#include "engine/exec/results/machine_state.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/errors.h"
#include "engine/comm/communicator.h"
#include "engine/cost/profile_cache.h"
#include "kernels/cpu/blas_buffers.h"
#include "kernels/kernels.h"

namespace moe {
namespace {

constexpr int64_t kSize = 192;
constexpr size_t kCopied = (size_t{1} << 20) / sizeof(float);

struct Operands {
  std::vector<float> a = std::vector<float>(kSize * kSize, 0.5f), b = a, c = a;
  std::vector<float> from = std::vector<float>(kCopied, 1.0f), to = from;
};

Nanoseconds ns_of(const timeval& t) {
  return t.tv_sec * 1'000'000'000 + t.tv_usec * 1'000;
}

/// Sums over all cores since the system started.
struct CoreTimes {
  Nanoseconds busy = 0;    // in which cores worked, or the hypervisor took them
  Nanoseconds stolen = 0;  // the part of `busy` in which the hypervisor took them
};

CoreTimes core_times() {
  std::ifstream stat("/proc/stat");
  std::string cpu;
  std::array<int64_t, 8> ticks{};  // user, nice, system, idle, iowait, irq, softirq, steal
  stat >> cpu;
  for (int64_t& t : ticks) stat >> t;
  if (!stat) return {};
  const int64_t busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7];
  const Nanoseconds tick = 1'000'000'000 / sysconf(_SC_CLK_TCK);
  return {busy * tick, ticks[7] * tick};
}

/// The part of CoreTimes::busy that this process did not use.
Nanoseconds others_ns() {
  rusage own{};
  getrusage(RUSAGE_SELF, &own);
  return core_times().busy - ns_of(own.ru_utime) - ns_of(own.ru_stime);
}

}  // namespace

Nanoseconds reference_call_ns() {
  static thread_local Operands o;
  const Nanoseconds begin = clock_ns();
  for (int i = 0; i < 2; ++i) {
    kernels::fast_table().gemm(false, true, kSize, kSize, kSize, 1.0f, o.a.data(), kSize,
                               o.b.data(), kSize, 0.0f, o.c.data(), kSize, nullptr);
  }
  std::copy(o.from.begin(), o.from.end(), o.to.begin());
  return clock_ns() - begin;
}

Nanoseconds reference_ns() {
  reference_call_ns();  // its operands are in the caches from here on
  return median({reference_call_ns(), reference_call_ns(), reference_call_ns()});
}

double slower_than_reference() {
  if (!kernels::reserve_blas_buffers(1)) {
    throw run_error(
        "measuring this machine's speed needs 128 MiB of address space, but this process cannot "
        "reserve it; raise its limit (ulimit -v)");
  }
  return static_cast<double>(reference_ns()) / static_cast<double>(kReferenceNs);
}

OthersWatch::OthersWatch()
    : begin_(clock_ns()), others_(others_ns()), stolen_(core_times().stolen) {}

double OthersWatch::share_of_cores(Nanoseconds ns) const {
  const Nanoseconds all = (clock_ns() - begin_) * sysconf(_SC_NPROCESSORS_ONLN);
  return std::clamp(static_cast<double>(ns) / static_cast<double>(all), 0.0, 1.0);
}

double OthersWatch::share() const {
  return share_of_cores(others_ns() - others_);
}

double OthersWatch::stolen() const {
  return share_of_cores(core_times().stolen - stolen_);
}

bool machine_is_quiet() {
  const OthersWatch watch;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return watch.share() <= kMostOthers;
}

}  // namespace moe
