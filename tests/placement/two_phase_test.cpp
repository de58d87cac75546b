#include "engine/placement/two_phase.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/rng.h"

namespace moe {
namespace {

using Ids = std::vector<int64_t>;

/// Numbers that add up to at most `devices`: some 0, some large.
std::vector<double> random_wanted(int64_t experts, int64_t devices, uint64_t seed) {
  Rng rng(seed);
  std::vector<double> wanted(static_cast<size_t>(experts));
  const double skew = 1 + 6 * rng.uniform();
  for (double& n : wanted) n = rng.uniform() < 0.2 ? 0 : std::pow(rng.uniform(), skew);
  const double sum = std::accumulate(wanted.begin(), wanted.end(), 0.0);
  const double part = rng.uniform() < 0.5 ? 1 : rng.uniform();
  for (double& n : wanted) n *= sum > 0 ? part * static_cast<double>(devices) / sum : 0;
  return wanted;
}

Ids experts_on(const Placement& p, int64_t device) {
  Ids on;
  for (int64_t s = 0; s < p.bounds().slots(); ++s) {
    if (p.at(device, s) >= 0) on.push_back(p.at(device, s));
  }
  return on;
}

double total(const std::vector<double>& wanted) {
  return std::accumulate(wanted.begin(), wanted.end(), 0.0);
}

TEST_CASE("every expert has a place, at most cap are on a device, only the popular have several") {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed + 7'000'000);
    const int64_t devices = 1 + rng.below(17), cap = 1 + rng.below(5);
    const int64_t experts = 1 + rng.below(cap * devices);
    const auto wanted = random_wanted(experts, devices, seed);
    const TwoPhaseOptions options{.cap = cap, .seed = seed};
    const Placement p = place_by_popularity(wanted, devices, options);
    p.check();
    CHECK(p == place_by_popularity(wanted, devices, options));
    for (int64_t d = 0; d < devices; ++d) CHECK(int64_t(experts_on(p, d).size()) <= cap);
    for (int64_t e = 0; e < experts; ++e) {
      const Ids holders = p.holders(e);
      const double n = wanted[size_t(e)];
      REQUIRE(!holders.empty());
      CHECK(holders.front() == p.owner(e));
      CHECK(p.sharing(e) == Sharing::kEven);
      CHECK(double(holders.size()) <= std::max(1.0, std::ceil(n)));
      // A replica is given up only where an expert has no slot otherwise.
      if (experts + devices <= cap * devices / 2) {
        CHECK(double(holders.size()) >= std::floor(n));
      }
    }
  }
}

TEST_CASE("whole devices go to the popular, and what is left falls in by first fit") {
  // By hand: 0 has two whole devices and 1/4 left, 1 one and 1/2. Left: 1 (1/2), 2 (1/2), 3 (3/8),
  // 0 (1/4), 4 (1/4): devices 3: {1, 2}, 4: {3, 0, 4}. 5 and 6 are not expected: device 5.
  const Placement p =
      place_by_popularity(std::vector<double>{2.25, 1.5, 0.5, 0.375, 0.25, 0, 0}, 6);
  CHECK(p.holders(0) == Ids{0, 1, 4});
  CHECK(p.holders(1) == Ids{2, 3});
  CHECK(experts_on(p, 3) == Ids{1, 2});
  CHECK(experts_on(p, 4) == Ids{3, 0, 4});
  CHECK(experts_on(p, 5) == Ids{5, 6});
}

TEST_CASE("a device holds at most four small experts, however small they are") {
  const Placement p = place_by_popularity(std::vector<double>(6, 0.1), 6);
  CHECK(experts_on(p, 0) == Ids{0, 1, 2, 3});
  CHECK(experts_on(p, 1) == Ids{4, 5});
  CHECK(experts_on(p, 2).empty());
}

TEST_CASE("what fits into no device goes to the least loaded one") {
  // 0.6 four times on three devices: the fourth to the first of three equal ones.
  const Placement p = place_by_popularity(std::vector<double>{0.6, 0.6, 0.6, 0.6, 0.1}, 3);
  CHECK(experts_on(p, 0) == Ids{0, 3});
  CHECK(experts_on(p, 1) == Ids{1, 4});
}

TEST_CASE("one expert that takes all has every device, and the others stand beside it") {
  for (const int64_t devices : {1, 2, 4, 16}) {
    std::vector<double> wanted(size_t(devices), 0);
    wanted[size_t(devices) - 1] = double(devices);
    const Placement p = place_by_popularity(wanted, devices);
    CHECK(int64_t(p.holders(devices - 1).size()) == devices);
    for (int64_t e = 0; e + 1 < devices; ++e) CHECK(p.holders(e).size() == 1);
  }
}

TEST_CASE("replicas are given up where all slots are needed for experts") {
  std::vector<double> wanted(8, 0);
  wanted[3] = 2;
  const Placement p = place_by_popularity(wanted, 2);
  for (int64_t e = 0; e < 8; ++e) CHECK(p.holders(e).size() == 1);
  CHECK_THROWS_WITH(place_by_popularity(std::vector<double>(9, 0), 2),
                    Catch::Contains("2 devices cannot hold 9 experts"));
}

TEST_CASE("without any estimate the experts lie spread evenly") {
  const Placement p = place_by_popularity(std::vector<double>(10, 0), 4);
  CHECK(experts_on(p, 0) == Ids{0, 4, 8});
  CHECK(experts_on(p, 3) == Ids{3, 7});
}

/// First fit decreasing, as books have it; of weights in any order.
size_t bins_of_first_fit(std::vector<double> weights) {
  std::sort(weights.rbegin(), weights.rend());
  std::vector<double> bins;
  for (const double w : weights) {
    const auto fits =
        std::find_if(bins.begin(), bins.end(), [&](double sum) { return sum + w <= 1 + 1e-9; });
    if (fits == bins.end()) {
      bins.push_back(w);
    } else {
      *fits += w;
    }
  }
  return bins.size();
}

/// The fewest bins, by trying all.
size_t fewest_bins(const std::vector<double>& weights, size_t i, std::vector<double>& bins,
                   size_t best) {
  if (bins.size() >= best) return best;
  if (i == weights.size()) return bins.size();
  for (size_t b = 0; b < bins.size(); ++b) {
    if (bins[b] + weights[i] > 1 + 1e-9) continue;
    bins[b] += weights[i];
    best = fewest_bins(weights, i + 1, bins, best);
    bins[b] -= weights[i];
  }
  bins.push_back(weights[i]);
  best = fewest_bins(weights, i + 1, bins, best);
  bins.pop_back();
  return best;
}

TEST_CASE("unpopular experts use as many devices as first fit decreasing, near the fewest") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    std::vector<double> wanted(size_t(2 + rng.below(7)));
    for (double& n : wanted) n = 0.02 + 0.9 * rng.uniform();
    const auto devices = int64_t(wanted.size());
    const Placement p = place_by_popularity(wanted, devices, {.cap = devices});
    size_t used = 0;
    for (int64_t d = 0; d < devices; ++d) {
      double sum = 0;
      for (const int64_t e : experts_on(p, d)) sum += wanted[size_t(e)];
      CHECK(sum <= 1 + 1e-9);
      used += sum > 0 ? 1 : 0;
    }
    CHECK(used == bins_of_first_fit(wanted));
    std::vector<double> bins;
    const auto fewest = double(fewest_bins(wanted, 0, bins, wanted.size() + 1));
    CHECK(double(used) <= 11.0 / 9 * fewest + 6.0 / 9);
  }
}

TEST_CASE("no device expects more than rounding up to whole devices explains") {
  // Without fragmentation a device expects at most 1, plus what even sharing moves from whole
  // devices to the one that holds the rest: less than 1.
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const int64_t experts = 8, devices = 16;
    auto wanted = random_wanted(experts, devices, seed);
    for (double& n : wanted) n /= 2;  // enough devices for everyone
    const Placement p = place_by_popularity(wanted, devices);
    for (int64_t d = 0; d < devices; ++d) {
      double load = 0;
      for (const int64_t e : experts_on(p, d)) {
        load += wanted[size_t(e)] / double(p.holders(e).size());
      }
      CHECK(load < 4);
      if (experts_on(p, d).size() == 1) CHECK(load <= 1 + 1e-9);
    }
    CHECK(total(wanted) <= 8 + 1e-9);
  }
}

TEST_CASE("shared evenly a small rest fills a device; by weight every device gets its part") {
  ExpertCounts loads(4, 4);
  const std::vector<double> wanted = {2.25, 0.75, 0.5, 0.5};
  for (int64_t e = 0; e < 4; ++e) {
    for (int64_t s = 0; s < 4; ++s) loads.at(s, e) = int64_t(400 * wanted[size_t(e)]);
  }
  const Placement even = place_by_popularity(wanted, 4);
  CHECK(even.holders(0) == Ids{0, 1, 2});
  CHECK(device_loads(even, loads).computed == std::vector<int64_t>{1200, 1200, 2400, 1600});
  const Placement weighted = place_by_popularity(wanted, 4, {.weighted = true});
  weighted.check();
  CHECK(device_loads(weighted, loads).computed == std::vector<int64_t>{1600, 1600, 1600, 1600});
}

TEST_CASE("phase 2 places by what the gate chose") {
  const std::vector<int64_t> counts = {3, 0, 0, 1};
  CHECK(wanted_devices(counts, 4) == std::vector<double>{3, 0, 0, 1});
  CHECK(wanted_devices(std::vector<int64_t>{0, 0}, 2) == std::vector<double>{0, 0});
  const Placement p = place_by_popularity(wanted_devices(counts, 4), 4);
  CHECK(p.holders(0) == Ids{0, 1, 2});
  CHECK(p.holders(3) == Ids{3});
}

TEST_CASE("an estimate holds where the 2k most popular are the same, in order or not") {
  const std::vector<double> wanted = {0.5, 2, 0, 1};
  CHECK(top_experts(std::span<const double>(wanted), 2) == Ids{1, 3});
  const auto holds = [&](std::vector<int64_t> counts, int64_t k, Compare compare) {
    return estimate_holds(wanted, counts, k, compare);
  };
  CHECK(holds({1, 9, 0, 5}, 1, Compare::kList));
  CHECK_FALSE(holds({1, 5, 0, 9}, 1, Compare::kList));
  CHECK(holds({1, 5, 0, 9}, 1, Compare::kSet));
  CHECK_FALSE(holds({6, 5, 0, 3}, 1, Compare::kSet));
  CHECK(holds({1, 9, 0, 5}, 2, Compare::kList));
  CHECK_FALSE(holds({1, 9, 1, 5}, 2, Compare::kList));  // nobody expects expert 2
  CHECK_THROWS_WITH(compare_named("bag"), Catch::Contains("list, set"));
}

TEST_CASE("a popularity that cannot be is refused") {
  CHECK_THROWS_WITH(place_by_popularity(std::vector<double>{1, -1}, 2),
                    Catch::Contains("place.popularity[1] = -1"));
  CHECK_THROWS_WITH(place_by_popularity(std::vector<double>{1, 2}, 2),
                    Catch::Contains("the sum over experts is 3 devices"));
  CHECK_THROWS_WITH(place_by_popularity(std::vector<double>{1}, 2, {.cap = 0}),
                    Catch::Contains("place.cap = 0"));
}

}  // namespace
}  // namespace moe
