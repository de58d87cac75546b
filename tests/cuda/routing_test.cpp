// Routing on the device against the CPU's gates, emulated on the host, never run on a GPU.
#include "kernels/cuda/routing.h"
#include "engine/routing/gate.h"
#include "engine/routing/primitives.h"
#include "kernels/cuda/device_functions.h"
#include "tests/cuda/emulation/emulated.h"

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
  // -infinity for all experts would mean that a token can choose none, which only the host knows.
  const std::vector<float> lowest(scores.size(), std::numeric_limits<float>::lowest());
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
    CHECK((r.expert[choice] == kernels::kNanScores) == marked);
    CHECK((r.choice_slot[choice] == -1) == marked);
  }
}

TEST_CASE("routing to more experts than it has room for is refused") {
  kernels::cuda::route({}, nullptr, {1, 1025, 1, 1}, nullptr, nullptr);
  CHECK(kernels::cuda::take_error().find("at most 1024 experts") != std::string::npos);
}

namespace {

/// A batch that both sides route in parts, each part's maps into arrays of the whole batch.
struct Batch {
  Batch(RouteShape s, uint64_t seed)
      : shape(s),
        probabilities(random_values<float>(s.tokens * s.experts, seed)),
        cpu(s),
        device(s),
        used_cpu(static_cast<size_t>(s.experts)),
        used_device(used_cpu) {
    // Coarse, so that scores tie; the bias changes who is chosen, not the weights.
    for (float& p : probabilities) p = std::floor(std::abs(p) * 50) / 64;
    scores = probabilities;
    const auto bias = random_values<float>(s.experts, seed + 1, 0.5);
    for (size_t i = 0; i < scores.size(); ++i)
      scores[i] += bias[i % static_cast<size_t>(s.experts)];
  }

  void route_on_cpu(int64_t first, int64_t tokens, WeightRule rule) {
    const int64_t at = first * shape.k;
    Ints counts(used_cpu.size());
    const RoutingMaps maps = {.tokens = tokens,
                              .experts = shape.experts,
                              .columns = shape.k,
                              .capacity = shape.capacity,
                              .expert = cpu.expert.data() + at,
                              .choice_slot = cpu.choice_slot.data() + at,
                              .slot_choice = cpu.slot_choice.data(),
                              .counts = counts.data(),
                              .first_token = first,
                              .part = true};
    RoutingBuilder builder(maps, used_cpu);
    const std::span<const float> rows(scores.data() + first * shape.experts,
                                      static_cast<size_t>(tokens * shape.experts));
    builder.fill(topk_rows(ScoreMatrix(rows, shape.experts), shape.k), shape.k);
    builder.order_by_token();
    gate_weights<float>(cpu.weight.data() + at, probabilities.data() + first * shape.experts, maps,
                        rule);
    used_cpu = cpu.counts = counts;
  }

  void route_on_device(int64_t first, int64_t tokens, WeightRule rule) {
    const int64_t at = first * shape.k;
    Ints counts(used_device.size());
    std::vector<char> work(
        static_cast<size_t>(kernels::cuda::top_k_work_bytes(tokens, shape.experts, shape.k)));
    const kernels::TopKRouting routing = {
        .tokens = tokens,
        .experts = shape.experts,
        .k = shape.k,
        .capacity = shape.capacity,
        .scores = scores.data() + first * shape.experts,
        .probabilities = probabilities.data() + first * shape.experts,
        .used_before = first == 0 ? nullptr : used_device.data(),
        .expert = device.expert.data() + at,
        .choice_slot = device.choice_slot.data() + at,
        .slot_choice = device.slot_choice.data(),
        .counts = counts.data(),
        .weight = device.weight.data() + at,
        .rule = rule,
        .first_token = first,
        .part = true,
        .work = work.data()};
    kernels::cuda::route_top_k(routing, nullptr);
    REQUIRE(kernels::cuda::take_error() == "");
    used_device = device.counts = counts;
  }

  RouteShape shape;
  std::vector<float> scores, probabilities;
  Routed cpu, device;  // -7 where no part has written
  Ints used_cpu, used_device;
};

}  // namespace

TEST_CASE("emulated on the host: parts of a batch take the CPU's places and leave the others") {
  Rng rng(3);
  for (uint64_t round = 0; round < 60; ++round) {
    emulation::set_order(round);
    const int64_t k = 1 + static_cast<int64_t>(round % 2), experts = k + rng.below(12);
    const int64_t tokens = 1 + rng.below(400);
    // Capacity that binds, by a little or for most; none at all; and room for every token.
    const std::vector<int64_t> capacities = {tokens * k / experts, 1 + tokens / 10, 0, tokens};
    const RouteShape shape = {tokens, experts, k, capacities[round / 2 % 4]};
    INFO(tokens << " tokens, " << experts << " experts, k " << k << ", capacity "
                << shape.capacity);
    Batch batch(shape, round);
    const auto rule = static_cast<WeightRule>(round % 3);
    for (int64_t first = 0; first < tokens;) {
      const int64_t here = std::min(tokens - first, 1 + rng.below(150));
      batch.route_on_cpu(first, here, rule);
      batch.route_on_device(first, here, rule);
      REQUIRE(batch.device == batch.cpu);
      first += here;
    }
    if (k > 1) continue;
    // First choices come in token order, so the parts make the whole batch's routing.
    std::replace(batch.device.slot_choice.begin(), batch.device.slot_choice.end(), -7, -1);
    const Routed whole = on_cpu(shape, batch.scores, {}, rule);
    REQUIRE(batch.device.slot_choice == whole.slot_choice);
    REQUIRE(batch.device.choice_slot == whole.choice_slot);
    REQUIRE(batch.device.counts == whole.counts);
  }
}

TEST_CASE("a part whose choices have no int32 number, and more choices than experts, are refused") {
  kernels::cuda::route({.first_token = int64_t{1} << 30}, nullptr, {1, 2, 2, 1}, nullptr, nullptr);
  CHECK(kernels::cuda::take_error().find("2^31 - 1 choices") != std::string::npos);
  kernels::cuda::top_k(nullptr, nullptr, {1, 2, 3, 1}, nullptr);
  CHECK(kernels::cuda::take_error() ==
        "cuda: top_k got k = 3 choices per token; at most the number of experts, 2, is allowed");
}
