// Lina's scheduling of one MoE layer: from the paths of a batch's tokens to the mapping (phase 1),
// and again with actual counts (phase 2), us: median [lowest quarter, highest quarter].
#include <fmt/format.h>

#include <functional>

#include "engine/base/rng.h"
#include "engine/placement/path_profile.h"
#include "engine/placement/two_phase.h"
#include "tests/bench/measure.h"

namespace {

using moe::Estimate;

constexpr int kSamples = 201;

std::string measure(const std::function<void()>& work) {
  return moe::bench::in_us(moe::bench::spread_ns(kSamples, work));
}

/// Skewed: the product of two uniform numbers.
std::vector<int32_t> choices(int64_t experts, int64_t tokens, uint64_t seed) {
  moe::Rng rng(seed);
  std::vector<int32_t> out(static_cast<size_t>(tokens));
  for (int32_t& e : out) {
    e = static_cast<int32_t>(rng.uniform() * rng.uniform() * static_cast<double>(experts));
  }
  return out;
}

void bench(int64_t experts, int64_t path, int64_t tokens) {
  const moe::PathOptions options{.layers = path + 1, .experts = experts, .path = path};
  moe::PathCounts counts(options);
  moe::TokenPaths paths(options, tokens);
  const auto run_batch = [&](uint64_t seed, bool train) {
    paths.clear();
    for (int64_t i = 0; i < path; ++i) {
      paths.add(choices(experts, tokens, seed + static_cast<uint64_t>(i)), 1);
    }
    if (train) counts.add(path, paths, choices(experts, tokens, seed + 99), 1);
  };
  for (uint64_t batch = 0; batch < 20; ++batch) run_batch(1000 * batch, true);
  run_batch(77'777, false);
  const moe::PathProfile profile = counts.profile();
  const std::vector<int32_t> chosen = choices(experts, tokens, 5);
  std::vector<double> wanted;
  std::vector<int64_t> actual(static_cast<size_t>(experts));
  for (const int32_t e : chosen) ++actual[static_cast<size_t>(e)];
  fmt::print("{:>8}{:>6}{:>8}{:>9}", experts, path, tokens, profile.num_paths(path));
  fmt::print("{:>24}", measure([&] { paths.add(chosen, 1); }));
  run_batch(77'777, false);
  fmt::print("{:>24}",
             measure([&] { wanted = wanted_devices(profile.estimate(path, paths), experts); }));
  fmt::print("{:>24}", measure([&] { moe::place_by_popularity(wanted, experts); }));
  fmt::print("{:>24}\n", measure([&] {
               if (!moe::estimate_holds(wanted, actual, 1)) {
                 moe::place_by_popularity(moe::wanted_devices(actual, experts), experts);
               }
             }));
}

}  // namespace

int main() {
  fmt::print("{:>8}{:>6}{:>8}{:>9}{:>24}{:>24}{:>24}{:>24}\n", "experts", "path", "tokens", "paths",
             "paths go on", "estimate", "phase 1", "phase 2");
  for (const int64_t experts : {4, 16, 64}) {
    for (const int64_t path : {1, 3, 6}) bench(experts, path, 16'384);
  }
  bench(16, 3, 1024);
}
