// Routing laws: how long the loads of a step take, and what recording a run's routing costs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/routing/workload.h"

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// 12 MoE layers, 100 steps of 1,024 tokens a rank, an expert a rank.
void time_loads(const char* name, const moe::WorkloadOptions& options, int64_t ranks, int64_t k,
                int64_t steps) {
  const moe::RoutingLaw law = moe::workload(name, options, 1);
  moe::RoutingQuery q = {.ranks = ranks, .tokens = 1024, .experts = ranks, .k = k};
  const Clock::time_point begin = Clock::now();
  int64_t total = 0;
  for (q.step = 0; q.step < steps; ++q.step) {
    for (q.layer = 0; q.layer < 12; ++q.layer) total += law.loads(q).total();
  }
  const double ms = ms_since(begin);
  fmt::print("{:44} {:5} ranks, k {}: {:8.1f} ms for {} steps, {:.2f} ns a choice\n", law.name,
             ranks, k, ms, steps, ms * 1e6 / static_cast<double>(total));
}

}  // namespace

int main() {
  for (const moe::WorkloadDef& def : moe::workloads()) time_loads(def.name.c_str(), {}, 32, 1, 100);
  time_loads("zipf", {{"drift", 0.02}}, 32, 1, 100);
  time_loads("zipf", {}, 32, 2, 100);
  time_loads("markov", {{"rise", 0.1}}, 32, 1, 100);
  time_loads("zipf", {}, 1024, 1, 2);
  time_loads("zipf", {}, 1024, 8, 2);
}
