// Placement policies: how long a plan takes, by the number of devices and experts, and how far the
// greedy planner stays behind the best of all sets of copies where these can all be tried.
// Usage: bench_placement [RUNS]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "engine/comm/communicator.h"
#include "engine/placement/prophet.h"
#include "tests/placement/fixture.h"

namespace {

struct Spread {
  double median = 0, lo = 0, hi = 0;  // lo, hi: a tenth of the samples lies below, above
};

Spread spread_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double part) {
    return samples[static_cast<size_t>(part * static_cast<double>(samples.size() - 1))];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

Spread time_us(int runs, const std::function<void()>& body) {
  std::vector<double> samples;
  for (int i = 0; i < runs; ++i) {
    const moe::Nanoseconds begin = moe::clock_ns();
    body();
    samples.push_back(static_cast<double>(moe::clock_ns() - begin) / 1e3);
  }
  return spread_of(samples);
}

// Copies cost little, so that the search is long.
constexpr moe::PlaceRates kRates{.input_bytes = 2048,
                                 .expert_bytes = 1e5,
                                 .state_bytes = 2e5,
                                 .a2a_bytes_per_s = 5e9,
                                 .copy_bytes_per_s = 5e9,
                                 .inputs_per_s = 5e6};

void bench_search(int runs, int64_t devices, int64_t experts) {
  const moe::Loads loads = moe::test::skewed_loads(devices, experts, 1);
  const auto owners = moe::test::owners_in_order(experts, devices);
  for (const double alpha : {1.0, 0.0}) {
    moe::ProphetPlan plan;
    const Spread us =
        time_us(runs, [&] { plan = moe::plan_prophet(loads, owners, kRates, {.alpha = alpha}); });
    fmt::print("{:8} {:8} {:6} {:10.1f} {:10.1f} {:10.1f} {:10}\n", devices, experts, alpha,
               us.median, us.lo, us.hi, plan.selected.size());
  }
}

void bench_policy(int runs, const moe::PlacementPolicy& policy, int64_t devices) {
  const moe::Loads loads = moe::test::skewed_loads(devices, devices * 2, 1);
  const moe::Placement now(
      {.experts = 2 * devices, .devices = devices, .residents = 3, .shadows = 8});
  const moe::PolicyOptions options = moe::resolved(policy, {});
  const Spread us =
      time_us(runs, [&] { policy.place({.loads = loads, .now = now, .rates = kRates}, options); });
  fmt::print("{:20} {:8} {:10.1f} {:10.1f} {:10.1f}\n", policy.name, devices, us.median, us.lo,
             us.hi);
}

void gap(int64_t devices, int64_t n, moe::TimeEquation equation) {
  constexpr int kSets = 400;
  std::vector<double> percents;
  int best = 0;
  for (int seed = 0; seed < kSets; ++seed) {
    const moe::Loads loads = moe::test::skewed_loads(devices, devices, static_cast<uint64_t>(seed));
    const moe::PlaceRates rates = moe::test::random_rates(static_cast<uint64_t>(seed));
    const auto owners = moe::test::owners_in_order(devices, devices);
    const double least = moe::test::exhaustive_s(loads, owners, rates, equation);
    if (least <= 0) continue;
    const double time_s =
        moe::plan_prophet(loads, owners, rates, {.alpha = 0, .n = n, .equation = equation}).time_s;
    percents.push_back(100 * (time_s / least - 1));
    best += time_s <= least * (1 + 1e-12) ? 1 : 0;
  }
  const Spread percent = spread_of(percents);
  fmt::print("{:8} {:>5} {:9} {:10.2f} {:10.2f} {:10.2f} {:9} of {}\n", devices,
             n < 0 ? "auto" : fmt::to_string(n), static_cast<int>(equation), percent.median,
             percent.hi, *std::max_element(percents.begin(), percents.end()), best,
             percents.size());
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::max(3, std::atoi(argv[1])) : 51;
  fmt::print("Pro-Prophet's search alone, us of {} runs\n", runs);
  fmt::print("{:>8} {:>8} {:>6} {:>10} {:>10} {:>10} {:>10}\n", "devices", "experts", "alpha",
             "median", "10%", "90%", "selected");
  for (const int64_t devices : {16, 64, 512}) bench_search(runs, devices, devices);
  bench_search(runs, 64, 256);

  fmt::print("\nPolicies as a step calls them, two experts a device, us of {} runs\n", runs);
  fmt::print("{:20} {:>8} {:>10} {:>10} {:>10}\n", "", "devices", "median", "10%", "90%");
  for (const moe::PlacementPolicy& policy : moe::builtin_policies()) {
    for (const int64_t devices : {16, 64}) bench_policy(runs, policy, devices);
  }

  fmt::print("\nGreedy over the best set of copies, % of the layer's time by the model\n");
  fmt::print("{:>8} {:>5} {:>9} {:>10} {:>10} {:>10} {:>9}\n", "devices", "n", "equation", "median",
             "90%", "worst", "best");
  for (const auto equation : {moe::TimeEquation::kBlocking, moe::TimeEquation::kHidden}) {
    for (const int64_t devices : {3, 4}) {
      for (const int64_t n : {-1, 0, 1}) gap(devices, n, equation);
    }
  }
  return 0;
}
