#include "engine/exec/results/machine_state.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/cost/profile_cache.h"
#include "kernels/kernels.h"

namespace moe {
namespace {

constexpr int64_t kSize = 192;
constexpr size_t kCopied = (size_t{1} << 20) / sizeof(float);

struct Operands {
  std::vector<float> a = std::vector<float>(kSize * kSize, 0.5f), b = a, c = a;
  std::vector<float> from = std::vector<float>(kCopied, 1.0f), to = from;
};

Nanoseconds time_reference(Operands& o) {
  const Nanoseconds begin = clock_ns();
  for (int i = 0; i < 2; ++i) {
    kernels::fast_table().gemm(false, true, kSize, kSize, kSize, 1.0f, o.a.data(), kSize,
                               o.b.data(), kSize, 0.0f, o.c.data(), kSize, nullptr);
  }
  std::copy(o.from.begin(), o.from.end(), o.to.begin());
  return clock_ns() - begin;
}

Nanoseconds ns_of(const timeval& t) {
  return t.tv_sec * 1'000'000'000 + t.tv_usec * 1'000;
}

/// The time that all cores worked, or that the hypervisor took from them, since the system started.
Nanoseconds busy_ns() {
  std::ifstream stat("/proc/stat");
  std::string cpu;
  std::array<int64_t, 8> ticks{};  // user, nice, system, idle, iowait, irq, softirq, steal
  stat >> cpu;
  for (int64_t& t : ticks) stat >> t;
  if (!stat) return 0;
  const int64_t busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7];
  return busy * (1'000'000'000 / sysconf(_SC_CLK_TCK));
}

/// The part of busy_ns() that this process did not use.
Nanoseconds others_ns() {
  rusage own{};
  getrusage(RUSAGE_SELF, &own);
  return busy_ns() - ns_of(own.ru_utime) - ns_of(own.ru_stime);
}

}  // namespace

Nanoseconds reference_ns() {
  static thread_local Operands operands;
  std::vector<Nanoseconds> samples;
  time_reference(operands);  // its operands are in the caches from here on
  for (int64_t i = 0; i < 3; ++i) samples.push_back(time_reference(operands));
  return median(std::move(samples));
}

OthersWatch::OthersWatch() : begin_(clock_ns()), others_(others_ns()) {}

double OthersWatch::share() const {
  const Nanoseconds all = (clock_ns() - begin_) * sysconf(_SC_NPROCESSORS_ONLN);
  const double share = static_cast<double>(others_ns() - others_) / static_cast<double>(all);
  return std::clamp(share, 0.0, 1.0);
}

}  // namespace moe
