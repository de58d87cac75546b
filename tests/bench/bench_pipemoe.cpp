// PipeMoE: the exact degree of a layer, against brute force and Algorithm 1; and the 864 layers of
// its table IV, each planned and simulated op by op at degrees 1, 2, 4, 8 and its best one.
// Usage: bench_pipemoe [RUNS]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "tests/bench/measure.h"
#include "tests/passes/pipemoe_grid.h"

namespace {

using moe::bench::median_ms;

std::vector<moe::ChunkedLayer> all_layers() {
  std::vector<moe::ChunkedLayer> all;
  for (const auto& cluster : {moe::test::kLikely16, moe::test::kCluster32, moe::test::kCluster64}) {
    const std::vector<moe::ChunkedLayer> layers = moe::test::pipemoe_layers(cluster);
    all.insert(all.end(), layers.begin(), layers.end());
  }
  return all;
}

moe::DegreeProblem problem_of(const moe::ChunkedLayer& layer, moe::DegreeObjective objective) {
  return {.ways = moe::times_of(model_of(layer), objective)};
}

void bench_degree(int runs, const char* what, moe::DegreeObjective objective,
                  const std::function<int64_t(const moe::DegreeProblem&)>& degree_of) {
  std::vector<moe::DegreeProblem> problems;
  for (const moe::ChunkedLayer& layer : all_layers()) {
    problems.push_back(problem_of(layer, objective));
  }
  int64_t sum = 0;
  const double ms = median_ms(runs, [&] {
    for (const moe::DegreeProblem& problem : problems) sum += degree_of(problem);
  });
  fmt::print("{:24} {:9.3f} us per layer (degrees sum to {})\n", what,
             ms * 1e3 / static_cast<double>(problems.size()), sum / runs);
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 11;
  constexpr auto kForward = moe::DegreeObjective::kForward, kStep = moe::DegreeObjective::kStep;
  fmt::print("Degree of a layer, up to 64; median of {} runs over 864 layers\n", runs);
  const auto exact = [](const moe::DegreeProblem& p) { return moe::exact_degree(p).degree; };
  bench_degree(runs, "exact, forward", kForward, exact);
  bench_degree(runs, "exact, step", kStep, exact);
  bench_degree(runs, "brute, forward", kForward,
               [](const moe::DegreeProblem& p) { return moe::brute_degree(p).degree; });
  bench_degree(runs, "Algorithm 1, mended", kForward, [](const moe::DegreeProblem& p) {
    return moe::paper_degree(p, moe::PaperVersion::kFixed).degree;
  });

  const std::vector<moe::ChunkedLayer> layers = all_layers();
  moe::Nanoseconds total = 0;
  int64_t simulated = 0;
  const double ms = median_ms(std::min(runs, 3), [&] {
    total = 0, simulated = 0;
    for (const moe::ChunkedLayer& layer : layers) {
      const int64_t best = moe::exact_degree(problem_of(layer, kForward)).degree;
      for (const int64_t degree : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{8}, best}) {
        total += moe::end_of(moe::simulate_layer(*moe::plan_layer(layer, degree)));
        ++simulated;
      }
    }
  });
  fmt::print(
      "\n{} layers by simulation, {} plans: {:.3f} s ({:.0f} us per plan; {:.1f} s simulated)\n",
      layers.size(), simulated, ms / 1e3, ms * 1e3 / static_cast<double>(simulated),
      static_cast<double>(total) / 1e9);
  return 0;
}
