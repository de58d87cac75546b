#include "engine/placement/path_profile.h"

#include <catch2/catch.hpp>
#include <map>

#include "engine/base/errors.h"
#include "engine/base/rng.h"

namespace moe {
namespace {

using Layers = std::vector<std::vector<int32_t>>;  // [layers][tokens * k]

/// Tokens that mostly go on to the expert after the sum of their last two ones.
Layers random_choices(const PathOptions& o, int64_t tokens, uint64_t seed, double none = 0) {
  Rng rng(seed);
  Layers layers(static_cast<size_t>(o.layers), std::vector<int32_t>(size_t(tokens)));
  for (size_t t = 0; t < size_t(tokens); ++t) {
    for (size_t i = 0; i < layers.size(); ++i) {
      int64_t e = rng.below(o.experts);
      if (i > 1 && rng.uniform() < 0.6) {
        e = (std::max(layers[i - 1][t], 0) + std::max(layers[i - 2][t], 0) + 1) % o.experts;
      }
      layers[i][t] = rng.uniform() < none ? -1 : static_cast<int32_t>(e);
    }
  }
  return layers;
}

PathProfile profile_of(const PathOptions& o, const std::vector<Layers>& batches, int64_t k = 1) {
  PathCounts counts(o);
  for (const Layers& batch : batches) {
    TokenPaths paths(o, int64_t(batch[0].size()) / k);
    for (int64_t i = 0; i < o.layers; ++i) {
      counts.add(i, paths, batch[size_t(i)], k);
      paths.add(batch[size_t(i)], k);
    }
  }
  return counts.profile();
}

TokenPaths paths_before(const PathOptions& o, const Layers& batch, int64_t layer) {
  TokenPaths paths(o, int64_t(batch[0].size()));
  for (int64_t i = 0; i < layer; ++i) paths.add(batch[size_t(i)], 1);
  return paths;
}

/// Eq. 1 by maps of vectors, in double.
std::vector<double> wanted_by_maps(const PathOptions& o, const Layers& train, const Layers& batch,
                                   int64_t layer, int64_t devices) {
  const auto path_of = [&](const Layers& layers, size_t t) {
    std::vector<int32_t> path;
    for (int64_t i = layer - o.path; i < layer; ++i) path.push_back(layers[size_t(i)][t]);
    return path;
  };
  std::map<std::vector<int32_t>, std::map<int32_t, double>> psi;
  for (size_t t = 0; t < train[0].size(); ++t) {
    psi[path_of(train, t)][train[size_t(layer)][t]] += 1;
  }
  std::vector<double> wanted(size_t(o.experts));
  for (size_t t = 0; t < batch[0].size(); ++t) {
    const auto found = psi.find(path_of(batch, t));
    if (found == psi.end()) continue;
    double all = 0;
    std::vector<std::pair<double, int32_t>> order;
    for (const auto& [expert, count] : found->second) {
      all += count;
      order.emplace_back(-count, expert);
    }
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < std::min(order.size(), size_t(o.keep)); ++i) {
      wanted[size_t(order[i].second)] -=
          order[i].first / all * double(devices) / double(batch[0].size());
    }
  }
  return wanted;
}

TEST_CASE("Eq. 1 is the sum over tokens of what their paths say, by maps and in double") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const PathOptions o{.layers = 5,
                        .experts = int64_t(2 + seed % 7),
                        .path = int64_t(1 + seed % 4),
                        .keep = int64_t(1 + seed % 2)};
    const Layers train = random_choices(o, 300, seed), batch = random_choices(o, 90, seed + 1000);
    const PathProfile profile = profile_of(o, {train});
    for (int64_t layer = o.path; layer < o.layers; ++layer) {
      const Estimate estimate = profile.estimate(layer, paths_before(o, batch, layer));
      const std::vector<double> ours = wanted_devices(estimate, 8);
      const std::vector<double> other = wanted_by_maps(o, train, batch, layer, 8);
      double sum = 0;
      for (size_t e = 0; e < ours.size(); ++e) {
        CHECK(ours[e] == Approx(other[e]).margin(1e-7));
        sum += ours[e];
      }
      CHECK(sum <= 8);
      CHECK(estimate.tokens == 90);
    }
  }
}

TEST_CASE("an estimate does not depend on how tokens are split among ranks") {
  const PathOptions o{.layers = 5, .experts = 6, .path = 2};
  const PathProfile profile = profile_of(o, {random_choices(o, 400, 1)});
  const Layers batch = random_choices(o, 100, 2);
  const Estimate whole = profile.estimate(4, paths_before(o, batch, 4));
  Estimate sum{.mass = std::vector<int64_t>(6)};
  for (size_t rank = 0; rank < 4; ++rank) {
    Layers part = batch;
    for (auto& layer : part) {
      const auto first = layer.begin() + ptrdiff_t(25 * rank);
      layer = std::vector<int32_t>(first, first + 25);
    }
    sum.add(profile.estimate(4, paths_before(o, part, 4)));
  }
  CHECK(sum.mass == whole.mass);
  CHECK(sum.known == whole.known);
}

TEST_CASE("batches counted one by one make the profile of all of them") {
  const PathOptions o{.layers = 4, .experts = 5, .path = 2, .keep = 2, .shorter = true};
  const Layers a = random_choices(o, 50'000, 1), b = random_choices(o, 30'000, 2);
  Layers both = a;
  for (size_t i = 0; i < both.size(); ++i) both[i].insert(both[i].end(), b[i].begin(), b[i].end());
  CHECK(profile_of(o, {a, b}) == profile_of(o, {both}));
  CHECK(profile_of(o, {b, a}) == profile_of(o, {both}));
}

TEST_CASE("the most probable experts are kept, of equal ones the lower") {
  const PathOptions o{.layers = 2, .experts = 4, .path = 1, .keep = 2};
  const Layers batch = {{0, 0, 0, 0, 1, 1}, {3, 2, 2, 1, 3, 0}};
  const PathProfile profile = profile_of(o, {batch});
  const auto half = uint32_t(kMassOne / 2), quarter = uint32_t(kMassOne / 4);
  CHECK(profile.at(1, std::vector<int32_t>{0}) ==
        std::vector<PathProfile::Kept>{{2, half}, {1, quarter}});
  CHECK(profile.at(1, std::vector<int32_t>{1}) ==
        std::vector<PathProfile::Kept>{{0, half}, {3, half}});
  CHECK(profile.at(1, std::vector<int32_t>{2}).empty());
}

TEST_CASE("a token on an unknown path adds nothing, or what the known end of its path says") {
  PathOptions o{.layers = 3, .experts = 3, .path = 2};
  const Layers train = {{0, 0}, {1, 1}, {2, 2}}, batch = {{2, 0}, {1, 1}, {0, 0}};
  Estimate estimate = profile_of(o, {train}).estimate(2, paths_before(o, batch, 2));
  CHECK(estimate.known == 1);
  CHECK(estimate.mass == std::vector<int64_t>{0, 0, kMassOne});
  CHECK(wanted_devices(estimate, 4) == std::vector<double>{0, 0, 2});
  CHECK(wanted_devices(estimate, 4, true) == std::vector<double>{0, 0, 4});
  o.shorter = true;
  const PathProfile profile = profile_of(o, {train});
  estimate = profile.estimate(2, paths_before(o, batch, 2));
  CHECK(estimate.known == 2);
  CHECK(estimate.mass == std::vector<int64_t>{0, 0, 2 * kMassOne});
  CHECK(profile.covers(1));
  CHECK_FALSE(profile.covers(0));
}

TEST_CASE("no path goes through a layer in which the token chose nothing") {
  const PathOptions o{.layers = 6, .experts = 3, .path = 2};
  const Layers all = random_choices(o, 500, 3, 0.3);
  Layers rest = all;
  for (size_t t = 500; t-- > 0;) {
    if (all[1][t] >= 0 && all[2][t] >= 0 && all[3][t] >= 0) continue;
    for (auto& layer : rest) layer.erase(layer.begin() + ptrdiff_t(t));
  }
  const std::vector<int32_t> path = {1, 2};
  CHECK(profile_of(o, {all}).at(3, path) == profile_of(o, {rest}).at(3, path));
  const Layers none = {{-1}, {1}, {1}, {1}, {1}, {1}};
  CHECK(profile_of(o, {all}).estimate(2, paths_before(o, none, 2)).known == 0);
}

TEST_CASE("with two choices per token both are counted, and the first is on the path") {
  const PathOptions o{.layers = 2, .experts = 3, .path = 1, .keep = 2};
  const PathProfile profile = profile_of(o, {{{0, 1, 0, 2}, {1, 2, 1, 0}}}, 2);
  CHECK(profile.at(1, std::vector<int32_t>{0}) ==
        std::vector<PathProfile::Kept>{{1, uint32_t(kMassOne / 2)}, {0, uint32_t(kMassOne / 4)}});
  CHECK(profile.num_paths(1) == 1);
}

TEST_CASE("popularity's options are refused by name") {
  CHECK_THROWS_WITH(check(PathOptions{.experts = 16, .path = 12}),
                    Catch::Contains("popularity.path = 12, allowed: 1 to 11"));
  CHECK_THROWS_WITH(check(PathOptions{.experts = 4, .keep = 5}),
                    Catch::Contains("popularity.keep = 5"));
  TokenPaths paths({.experts = 4}, 2);
  CHECK_THROWS_WITH(paths.add(std::vector<int32_t>{1}, 1), Catch::Contains("1 choices"));
  CHECK_THROWS_WITH(paths.add(std::vector<int32_t>{1, 4}, 1), Catch::Contains("expert 4"));
}

}  // namespace
}  // namespace moe
