#include "engine/analysis/inference.h"

#include <catch2/catch.hpp>

namespace moe {
namespace {

/// Target of token i of a rank: 100 * step + 10 * rank + i.
void made_up(int64_t step, int64_t rank, int32_t* ids, int32_t* targets) {
  for (int32_t i = 0; i < 2; ++i) {
    ids[i] = -1;
    targets[i] = static_cast<int32_t>(100 * step + 10 * rank) + i;
  }
}

TEST_CASE("accuracy is a batch's share of predictions that are the target of their own token") {
  const std::vector<std::vector<int32_t>> predictions = {
      {300, 301, 310, 311}, {400, 0, 411, 410}, {0, 0, 0, 0}};
  CHECK(accuracy(predictions, 2, 2, made_up, 3) == std::vector<double>{1, 0.25, 0});
  CHECK(accuracy({}, 2, 2, made_up, 0).empty());
}

TEST_CASE("the digest of predictions tells their order and values, not their batches") {
  const uint64_t digest = digest_of({{1, 2}, {3, 4}});
  CHECK(digest == digest_of({{1, 2, 3, 4}}));
  CHECK(digest != digest_of({{1, 2}, {4, 3}}));
  CHECK(digest != digest_of({{1, 2}, {3, 5}}));
}

TEST_CASE("rows of owners are the places used of each rank's own experts, from all ranks") {
  MoeStats layer;
  layer.counts = {1, 2, 3, 4, 10, 20, 30, 40};  // 2 ranks, 4 experts
  CHECK(rows_of_owners(layer, {2, 1}, 2, 4) == std::vector<int64_t>{33, 77});
}

TEST_CASE("what was swapped says where rows were; other layers' experts are on their owners") {
  RunResult result;
  MoeStats first, second;
  first.layer = 1, second.layer = 3;
  first.counts = second.counts = {1, 2, 3, 4};  // 2 ranks, 2 experts
  result.moe = {{first, second}, {first, second}};
  auto layers = served_layers(result, {2, 1}, 2, 2);
  REQUIRE(layers.size() == 2);
  CHECK(layers[1][1].rows == std::vector<int64_t>{4, 6});
  CHECK_FALSE((layers[1][1].fine_tunes || layers[1][1].placed_again));

  result.offloads = {{}, {{.layer = 3, .fine_tunes = true, .again = true, .rows = {9, 1}}}};
  layers = served_layers(result, {2, 1}, 2, 2);
  CHECK(layers[1][0].rows == std::vector<int64_t>{4, 6});
  CHECK(layers[1][1].rows == std::vector<int64_t>{9, 1});
  CHECK((layers[1][1].fine_tunes && layers[1][1].placed_again));
  CHECK_FALSE(layers[0][1].fine_tunes);
}

}  // namespace
}  // namespace moe
