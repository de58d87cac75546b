// How benchmarks measure: a body several times, and the quartiles of the samples; and the cluster
// whose plans they time.
#pragma once

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "engine/cluster/cluster.h"

namespace moe::bench {

struct Spread {
  double low, median, high;
};

template <class T>
Spread spread_of(std::vector<T> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](size_t quarter) {
    return static_cast<double>(samples[samples.size() * quarter / 4]);
  };
  return {at(1), at(2), at(3)};
}

/// Of `runs` calls, by the wall clock.
template <class F>
Spread spread_ns(int runs, F body) {
  std::vector<double> samples;
  for (int i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    samples.push_back(took.count());
  }
  return spread_of(samples);
}
template <class F>
double median_ms(int runs, F body) {
  return spread_ns(runs, body).median / 1e6;
}

/// CPU time of this thread, so that others on the machine do not count. For bodies that run on one
/// thread.
inline double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
/// CPU time of one call.
template <class F>
double cpu_seconds(F body) {
  const double begin = cpu_seconds();
  body();
  return cpu_seconds() - begin;
}

/// Median [lowest quarter, highest quarter] in us.
inline std::string in_us(const Spread& ns) {
  return fmt::format("{:8.1f} [{:.1f}, {:.1f}]", ns.median / 1e3, ns.low / 1e3, ns.high / 1e3);
}

/// Nodes of 8 GPUs at assumed rates: what is timed is the planner or the simulator, so the times of
/// ops only have to be of the right size.
inline Cluster gpu_cluster(int64_t nodes) {
  Cluster c;
  c.nodes = nodes, c.devices_per_node = 8;
  c.device = {.gemm_flops_per_s = 140e12,
              .vector_flops_per_s = 15e12,
              .memory_bytes_per_s = 1.6e12,
              .launch_ns = 8000};
  c.intra = {300e9, 1000};
  c.nic = {12.5e9, 2500};
  c.nics_per_node = 4;
  c.a2a_base_ns = 20000, c.a2a_per_peer_ns = 2000;
  return c;
}

}  // namespace moe::bench
