// What the contention model costs on one core, for the sizes that its speed is judged by: the
// median of the samples, and the events of a run.
#include <fmt/format.h>

#include "tests/bench/measure.h"
#include "tests/network/clusters.h"

namespace {

using namespace moe;  // NOLINT
using test::all_reduce;
using test::all_to_all;
using test::all_to_all_v;
using test::eight_a_node;
using test::kMiB;

constexpr int kSamples = 9;

void measure(const std::string& name, const Cluster& cluster, const std::vector<NetworkOp>& ops) {
  NetworkRun run;
  const double ms = bench::median_ms(kSamples, [&] { run = run_collectives(cluster, ops); });
  fmt::print("{:<52}{:>10.2f}{:>10}{:>14.3f}\n", name, ms, run.num_events,
             to_ms(test::last_end_ns(run)));
}

NetworkOp random_exchange(int64_t n) {
  Rng rng(7);
  std::vector<double> bytes(static_cast<size_t>(n * n));
  for (double& b : bytes) b = static_cast<double>(rng.below(1 << 20));
  return all_to_all_v(bytes);
}

}  // namespace

int main() {
  fmt::print("{:<52}{:>10}{:>10}{:>14}\n", "", "ms", "events", "simulated ms");
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
  for (const int64_t nics : {1, 4}) {
    measure(fmt::format("random all-to-all and all-reduce, 64 ranks, {} NICs", nics),
            eight_a_node(64, nics), {random_exchange(64), reduce});
  }
  const Cluster cluster = eight_a_node(64);
  const NetworkOp skewed = all_to_all_v(test::skewed_matrix(64, kMiB / 4));
  measure("24 layers, balanced", cluster, test::iteration(24, all_to_all(kMiB / 4), 25 * kMiB));
  measure("24 layers, skewed", cluster, test::iteration(24, skewed, 25 * kMiB));
  measure("24 layers, random", cluster, test::iteration(24, random_exchange(64), 25 * kMiB));
  return 0;
}
