// What a gate costs that a simulation runs on scores (routing/gate_sample.h): CPU time per step and
// layer for 1,024 ranks of 4,096 tokens under zipf, by the number of experts.
// Usage: bench_gates [RUNS]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "engine/routing/gate_sample.h"
#include "engine/routing/workload.h"
#include "tests/bench/measure.h"

namespace {

using moe::bench::cpu_seconds;

constexpr int64_t kRanks = 1024, kTokens = 4096;

void measure(const moe::Gate& gate, int64_t experts, int runs) {
  const int64_t k = gate.fixed_k > 0 ? gate.fixed_k : 2;
  const moe::GateUse use = {.gate = gate,
                            .ranks = kRanks,
                            .tokens = kTokens,
                            .experts = experts,
                            .k = k,
                            .columns = gate.columns(k, experts),
                            .capacity = gate.capacity(kTokens, experts, k, 1.25),
                            .vocab = 50000,
                            .block = [](int64_t layer) { return layer; }};
  const auto law = std::make_shared<const moe::RoutingModel>(moe::workload("zipf", {}, 1));
  const moe::RoutingModel routing = moe::gated_routing(use, law);
  moe::RoutingQuery query = {.ranks = kRanks, .tokens = kTokens, .experts = experts, .k = k};
  std::vector<double> samples;
  int64_t kept = 0;
  for (; query.step < runs; ++query.step) {
    samples.push_back(1e3 * cpu_seconds([&] { kept += routing.kept(query).total(); }));
  }
  const moe::bench::Spread ms = moe::bench::spread_of(samples);
  fmt::print("{:<14}{:>8}{:>10.1f} [{:.1f}, {:.1f}]{:>10.4f}\n", gate.name, experts, ms.median,
             ms.low, ms.high,
             static_cast<double>(kept) / static_cast<double>(runs * kRanks * kTokens));
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  fmt::print("{:<14}{:>8}{:>10}\n", "gate", "experts", "ms");
  for (const int64_t experts : {64, 512, 2048}) {
    for (const moe::Gate& gate : moe::builtin_gates()) measure(gate, experts, runs);
  }
  return 0;
}
