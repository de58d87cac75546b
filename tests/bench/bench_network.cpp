// What the contention model costs, for the sizes that its speed is judged by: CPU time, the median
// and the quartiles of the samples, and the events of a run.
// Usage: bench_network [SAMPLES] [WORD]: only the cases whose names have WORD
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/bench/measure.h"
#include "tests/network/clusters.h"

namespace {

using namespace moe;  // NOLINT
using test::all_reduce;
using test::all_to_all;
using test::all_to_all_v;
using test::eight_a_node;
using test::kMiB;

int num_samples = 9;
std::string only;

void measure(const std::string& name, const Cluster& cluster, const std::vector<NetworkOp>& ops) {
  if (name.find(only) == std::string::npos) return;
  NetworkRun run;
  std::vector<double> samples;
  for (int i = 0; i < num_samples; ++i) {
    samples.push_back(1e3 * bench::cpu_seconds([&] { run = run_collectives(cluster, ops); }));
  }
  const bench::Spread ms = bench::spread_of(samples);
  fmt::print("{:<55}{:>10.2f} {:>20}{:>10}{:>14.3f}\n", name, ms.median,
             fmt::format("[{:.2f}, {:.2f}]", ms.low, ms.high), run.num_events,
             to_ms(test::last_end_ns(run)));
  std::fflush(stdout);
}

NetworkOp random_exchange(int64_t n) {
  Rng rng(7);
  std::vector<double> bytes(static_cast<size_t>(n * n));
  for (double& b : bytes) b = static_cast<double>(rng.below(1 << 20));
  return all_to_all_v(bytes);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) num_samples = std::max(1, std::atoi(argv[1]));
  if (argc > 2) only = argv[2];
  fmt::print("{:<55}{:>10} {:>20}{:>10}{:>14}\n", "", "ms", "", "events", "simulated ms");
  const NetworkOp reduce = all_reduce(100 * kMiB);
  for (const int64_t n : {64, 128, 256}) {
    for (const int64_t nics : {1, 4, 8}) {
      measure(fmt::format("random all-to-all, {} ranks, {} NICs", n, nics), eight_a_node(n, nics),
              {random_exchange(n)});
    }
  }
  for (const int64_t n : {64, 256, 1024}) {
    const Cluster cluster = eight_a_node(n);
    measure(fmt::format("balanced all-to-all, {} ranks", n), cluster, {all_to_all(kMiB)});
    measure(fmt::format("the same and an all-reduce"), cluster, {all_to_all(kMiB), reduce});
  }
  for (const int64_t n : {64, 256, 512, 1024}) {
    for (const int64_t nics : {1, 4}) {
      measure(fmt::format("random all-to-all and all-reduce, {} ranks, {} NICs", n, nics),
              eight_a_node(n, nics), {random_exchange(n), reduce});
    }
  }
  const Cluster cluster = eight_a_node(64);
  const NetworkOp skewed = all_to_all_v(test::skewed_matrix(64, kMiB / 4));
  measure("24 layers, balanced", cluster, test::iteration(24, all_to_all(kMiB / 4), 25 * kMiB));
  measure("24 layers, skewed", cluster, test::iteration(24, skewed, 25 * kMiB));
  measure("24 layers, random", cluster, test::iteration(24, random_exchange(64), 25 * kMiB));
  return 0;
}
