// The gate that follows a routing model.
#include "engine/routing/routing_model.h"

#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/routing/workload.h"
#include "tests/routing/fixture.h"

using namespace moe;
using Catch::Matchers::Contains;
using moe::test::OwnedMaps;

namespace {

constexpr int64_t kRanks = 3, kTokens = 20, kExperts = 6;

std::shared_ptr<const RoutingModel> zipf() {
  return std::make_shared<const RoutingModel>(workload("zipf", {}, 4));
}

Gate gate_of(int64_t k) {
  return routed_gate(zipf(), kRanks, kTokens, k, [](int64_t block) { return block / 2; });
}

}  // namespace

TEST_CASE("loads that no memory can hold are refused with their sizes") {
  CHECK_THROWS_AS(ExpertCounts(int64_t{1} << 31, int64_t{1} << 31), RunError);
  CHECK_THROWS_WITH(
      ExpertCounts(524288, int64_t{1} << 42),
      Contains("4398046511104 experts get from each of 524288 ranks take 17179869184.0"));
}

TEST_CASE("a routed gate gives every rank the choices of its step and MoE layer") {
  for (const int64_t k : {1, 3}) {
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      OwnedMaps out(kTokens, kExperts, k, kTokens);
      RoutingBuilder builder(out.maps);
      gate_of(k).route({.tokens = kTokens,
                        .experts = kExperts,
                        .k = k,
                        .capacity = kTokens,
                        .first_token = rank * kTokens,
                        .step = 5,
                        .layer = 3},
                       builder);
      std::vector<int32_t> expected(static_cast<size_t>(kTokens * k));
      zipf()->route({5, 1, kRanks, kTokens, kExperts, k}, rank, expected);
      CHECK(out.expert == expected);
    }
  }
}

TEST_CASE("a routed gate has token scope where it makes one choice, or where every token fits") {
  CHECK(scope_of(gate_of(1), 1.25) == GateScope::kToken);
  CHECK(scope_of(gate_of(2), 1.25) == GateScope::kBatch);
  CHECK(scope_of(gate_of(2), 0) == GateScope::kToken);
  const std::vector<float> scores(kTokens * kExperts);
  const std::vector<int32_t> ids(kTokens);
  const GateInput in = {.tokens = kTokens,
                        .experts = kExperts,
                        .k = 1,
                        .capacity = 4,
                        .scores = scores.data(),
                        .ids = ids.data(),
                        .first_token = kTokens};
  CHECK_NOTHROW(check_token_scope(gate_of(1).route, in, 1));
}

TEST_CASE("a routed gate has top_k's capacity and weights that follow the scores") {
  const Gate gate = gate_of(2);
  CHECK(gate.capacity(64, 8, 2, 1.25) == builtin_gate("top_k").capacity(64, 8, 2, 1.25));
  CHECK(gate.columns(2, 8) == 2);
  CHECK(gate.weight == kernels::WeightRule::kProb);
  CHECK(gate.name == zipf()->name);
}
