// Routing on the device against the CPU's gates, emulated on the host, never run on a GPU.
#include "kernels/cuda/routing.h"

#include <cuda_runtime.h>

#include "engine/routing/gate.h"
#include "engine/routing/primitives.h"
#include "kernels/cuda/errors.h"
#include "tests/cuda/on_device.h"

using namespace moe;
using namespace moe::test;
using kernels::WeightRule;
using kernels::cuda::DeviceMaps;
using kernels::cuda::RouteShape;

namespace {

using Ints = std::vector<int32_t>;

struct Routed {
  explicit Routed(RouteShape s)
      : shape(s),
        expert(static_cast<size_t>(s.tokens * s.k), -7),
        choice_slot(expert.size(), -7),
        slot_choice(static_cast<size_t>(s.experts * s.capacity), -7),
        counts(static_cast<size_t>(s.experts), -7),
        weight(expert.size(), -7) {}
  bool operator==(const Routed& o) const {
    const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    return expert == o.expert && choice_slot == o.choice_slot && slot_choice == o.slot_choice &&
           counts == o.counts &&
           std::equal(weight.begin(), weight.end(), o.weight.begin(), o.weight.end(), same);
  }

  RouteShape shape;
  Ints expert, choice_slot, slot_choice, counts;
  std::vector<float> weight;
};

Routed on_cpu(RouteShape s, const std::vector<float>& scores, const Ints& used, WeightRule rule) {
  Routed r(s);
  const RoutingMaps maps = {.tokens = s.tokens,
                            .experts = s.experts,
                            .columns = s.k,
                            .capacity = s.capacity,
                            .expert = r.expert.data(),
                            .choice_slot = r.choice_slot.data(),
                            .slot_choice = r.slot_choice.data(),
                            .counts = r.counts.data()};
  RoutingBuilder builder(maps, used);
  builder.fill(topk_rows(ScoreMatrix(scores, s.experts), s.k), s.k);
  builder.order_by_token();
  gate_weights<float>(r.weight.data(), scores.data(), maps, rule);
  return r;
}

Routed on_device(RouteShape s, const std::vector<float>& scores, const Ints& used, WeightRule rule,
                 uint64_t order) {
  emulation::set_order(order);
  Routed r(s);
  const DeviceMaps maps = {r.expert.data(), r.choice_slot.data(), r.slot_choice.data(),
                           r.counts.data()};
  std::vector<char> work(static_cast<size_t>(kernels::cuda::route_work_bytes(s)));
  kernels::cuda::top_k(r.expert.data(), scores.data(), s, nullptr);
  kernels::cuda::route(maps, used.empty() ? nullptr : used.data(), s, work.data(), nullptr);
  kernels::cuda::route_weights(r.weight.data(), scores.data(), maps, rule, s, nullptr);
  REQUIRE(kernels::cuda::take_error() == "");
  return r;
}

void same_as_cpu(RouteShape s, const std::vector<float>& scores, const Ints& used = {}) {
  INFO(s.tokens << " tokens, " << s.experts << " experts, k " << s.k << ", capacity "
                << s.capacity);
  uint64_t order = 0;
  for (const WeightRule rule : {WeightRule::kProb, WeightRule::kRenorm, WeightRule::kOne})
    REQUIRE(on_device(s, scores, used, rule, order++) == on_cpu(s, scores, used, rule));
}

/// Tokens that do not fill a block or a warp, more than one chunk, more experts than lanes.
const std::vector<RouteShape> kRoutes = {{1, 1, 1, 1},    {5, 3, 2, 2},     {33, 4, 4, 9},
                                         {300, 7, 2, 40}, {513, 40, 3, 30}, {70, 300, 8, 2},
                                         {64, 8, 1, 0},   {256, 16, 1, 300}};

}  // namespace

TEST_CASE("emulated on the host: routing gives the CPU's maps, drops and weights") {
  for (const RouteShape s : kRoutes) {
    auto scores = random_values<float>(s.tokens * s.experts, 1);
    for (float& p : scores) p = std::abs(p);
    same_as_cpu(s, scores);
  }
}

TEST_CASE("emulated on the host: ties go to the lower expert") {
  for (const RouteShape s : kRoutes) {
    auto scores = random_values<float>(s.tokens * s.experts, 2);
    for (float& p : scores) p = std::floor(std::abs(p) * 3) / 4;  // 0, 0.25 or 0.5
    for (int64_t i = 0; i < s.tokens * s.experts; i += 5) scores[i] = -0.0f;
    same_as_cpu(s, scores);
    same_as_cpu(s, std::vector<float>(scores.size(), 0.5f));  // all tokens on the first experts
  }
}

TEST_CASE("emulated on the host: infinite scores are ranked as the CPU ranks them") {
  const RouteShape s = {40, 9, 3, 6};
  auto scores = random_values<float>(s.tokens * s.experts, 3);
  for (size_t i = 0; i < scores.size(); i += 4) scores[i] = i % 8 ? INFINITY : -INFINITY;
  for (uint64_t order = 0; order < kRuns; ++order)
    REQUIRE(on_device(s, scores, {}, WeightRule::kOne, order) ==
            on_cpu(s, scores, {}, WeightRule::kOne));
  const std::vector<float> lowest(scores.size(), -INFINITY);
  REQUIRE(on_device(s, lowest, {}, WeightRule::kOne, 2) == on_cpu(s, lowest, {}, WeightRule::kOne));
  const std::vector<float> highest(scores.size(), INFINITY);
  REQUIRE(on_device(s, highest, {}, WeightRule::kOne, 2) ==
          on_cpu(s, highest, {}, WeightRule::kOne));
}

TEST_CASE("emulated on the host: places begin where earlier parts of the batch ended") {
  const RouteShape s = {90, 6, 2, 20};
  auto scores = random_values<float>(s.tokens * s.experts, 4);
  for (float& p : scores) p = std::abs(p);
  same_as_cpu(s, scores, {0, 5, 19, 20, 7, 1});
}

TEST_CASE("emulated on the host: a token whose scores hold a NaN is marked and gets no place") {
  const RouteShape s = {50, 70, 2, 50};
  auto scores = random_values<float>(s.tokens * s.experts, 5);
  scores[17 * 70 + 64] = NAN;
  const Routed r = on_device(s, scores, {}, WeightRule::kProb, 0);
  for (int64_t choice = 0; choice < 100; ++choice) {
    const bool marked = choice / 2 == 17;
    CHECK((r.expert[choice] == kernels::cuda::kNanScores) == marked);
    CHECK((r.choice_slot[choice] == -1) == marked);
  }
}

TEST_CASE("routing to more experts than it has room for is refused") {
  kernels::cuda::route({}, nullptr, {1, 1025, 1, 1}, nullptr, nullptr);
  CHECK(kernels::cuda::take_error().find("up to 1024 experts") != std::string::npos);
}
