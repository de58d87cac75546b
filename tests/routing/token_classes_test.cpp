#include "engine/routing/token_classes.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "engine/base/errors.h"
#include "engine/routing/workload.h"

namespace moe {
namespace {

std::vector<std::vector<int32_t>> layers_of(const RoutingModel& routing, RoutingQuery q,
                                            int64_t layers, int64_t rank = 0) {
  std::vector<std::vector<int32_t>> all;
  for (q.layer = 0; q.layer < layers; ++q.layer) {
    all.emplace_back(static_cast<size_t>(q.tokens * q.k));
    routing.route(q, rank, all.back());
  }
  return all;
}

TEST_CASE(
    "a token's class goes to one expert in each layer, and several layers tell classes apart") {
  const RoutingModel routing = token_classes({.classes = 40, .skew = 0.5});
  const auto all = layers_of(routing, {.step = 3, .ranks = 2, .tokens = 5000, .experts = 8}, 8);
  std::map<std::vector<int32_t>, int> paths;
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (size_t t = 0; t < 5000; ++t) {
    std::vector<int32_t> path;
    for (const auto& layer : all) path.push_back(layer[t]);
    ++paths[path];
    pairs.emplace(all[0][t], all[1][t]);
  }
  CHECK(paths.size() <= 40);
  CHECK(paths.size() >= 38);
  CHECK(pairs.size() > 8);  // the last layer alone does not say which expert is next
}

TEST_CASE("strays are as many as said, and any expert alike") {
  const RoutingQuery q{.tokens = 40'000, .experts = 4};
  const auto pure = layers_of(token_classes({.classes = 9}), q, 2);
  const auto noisy = layers_of(token_classes({.classes = 9, .stray = 0.4}), q, 2);
  int64_t other = 0;
  for (size_t t = 0; t < 40'000; ++t) other += pure[1][t] != noisy[1][t] ? 1 : 0;
  CHECK(double(other) / 40'000 == Approx(0.4 * 3 / 4).margin(0.01));
}

TEST_CASE("popularity falls about as the ratio says") {
  const RoutingModel routing = token_classes({.classes = 4000, .skew = 0, .ratio = 5});
  const ExpertCounts loads = routing.loads({.ranks = 4, .tokens = 50'000, .experts = 16});
  std::vector<int64_t> rows;
  for (int64_t e = 0; e < 16; ++e) rows.push_back(loads.of_expert(e));
  const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
  CHECK(double(*most) / double(*least) == Approx(5).epsilon(0.1));
}

TEST_CASE("drift moves popularity from step to step, and loads count what is routed") {
  const RoutingModel routing = token_classes({.classes = 30, .drift = 1, .seed = 7});
  RoutingQuery q{.ranks = 2, .tokens = 3000, .experts = 6, .k = 2};
  const ExpertCounts first = routing.loads(q);
  ExpertCounts counted(2, 6);
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto layers = layers_of(routing, q, 1, rank);
    for (const int32_t e : layers[0]) ++counted.at(rank, e);
  }
  CHECK(first == counted);
  CHECK(first == routing.loads(q));
  q.step = 1;
  const ExpertCounts second = routing.loads(q);
  int64_t moved = 0;
  for (size_t i = 0; i < first.rows.size(); ++i) moved += std::abs(first.rows[i] - second.rows[i]);
  CHECK(moved > 1000);
}

TEST_CASE("the workload is the law with the options as its values") {
  const RoutingQuery q{.step = 2, .layer = 1, .ranks = 2, .tokens = 500, .experts = 8};
  const RoutingModel made =
      workload(kTokenClasses,
               {{"classes", 9}, {"skew", 2}, {"ratio", 3}, {"stray", 0.4}, {"drift", 0.5}}, 7);
  CHECK(made.name == "token_classes(classes=9, skew=2, ratio=3, stray=0.4, drift=0.5, seed=7)");
  CHECK(made.loads(q) == token_classes({9, 2, 3, 0.4, 0.5, 7}).loads(q));
  CHECK_THROWS_WITH(workload(kTokenClasses, {{"stray", 2}}, 7),
                    Catch::Contains("workload token_classes.stray = 2 is not allowed"));
}

TEST_CASE("more choices than experts are refused") {
  CHECK_THROWS_WITH(token_classes({}).loads({.tokens = 1, .experts = 1, .k = 2}),
                    Catch::Contains("k = 2 choices per token, allowed: at most the 1 experts"));
}

}  // namespace
}  // namespace moe
