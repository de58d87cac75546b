// Routing on the device against engine/routing, which routes on the CPU.
#include <cmath>
#include <limits>

#include "engine/routing/gate.h"
#include "engine/routing/primitives.h"
#include "tests/cuda/on_device.h"
#include "tests/gpu/gpu.h"

using namespace moe;
using namespace moe::test;
using kernels::ScoreRule;
using kernels::WeightRule;

namespace {

using Ints = std::vector<int32_t>;
using Floats = std::vector<float>;

struct Shape {
  int64_t tokens, experts, k, capacity;
};

/// Scores, or for the device also logits with `score`, [tokens, experts]; used [experts] or empty.
struct Input {
  Shape shape;
  Floats scores = {};
  Ints used = {};
  WeightRule rule = WeightRule::kProb;
  int64_t first_token = 0;
  bool part = false;
  Floats logits = {};
  ScoreRule score = ScoreRule::kSoftmax;
};

/// All maps of one routing. slot_choice holds what earlier parts left there.
struct Routed {
  explicit Routed(Shape s)
      : expert(static_cast<size_t>(s.tokens * s.k), -7),
        choice_slot(expert.size(), -7),
        slot_choice(static_cast<size_t>(s.experts * s.capacity), -1),
        counts(static_cast<size_t>(s.experts), -7),
        weight(expert.size(), -7) {}
  bool operator==(const Routed& o) const {
    const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    return expert == o.expert && choice_slot == o.choice_slot && slot_choice == o.slot_choice &&
           counts == o.counts &&
           std::equal(weight.begin(), weight.end(), o.weight.begin(), o.weight.end(), same);
  }

  Ints expert, choice_slot, slot_choice, counts;
  Floats weight;
};

Routed on_cpu(const Input& in, const Ints& slot_choice = {}) {
  Routed r(in.shape);
  if (in.part) r.slot_choice = slot_choice;
  const RoutingMaps maps = {.tokens = in.shape.tokens,
                            .experts = in.shape.experts,
                            .columns = in.shape.k,
                            .capacity = in.shape.capacity,
                            .expert = r.expert.data(),
                            .choice_slot = r.choice_slot.data(),
                            .slot_choice = r.slot_choice.data(),
                            .counts = r.counts.data(),
                            .first_token = in.first_token,
                            .part = in.part};
  RoutingBuilder builder(maps, in.used);
  builder.fill(topk_rows(ScoreMatrix(in.scores, in.shape.experts), in.shape.k), in.shape.k);
  builder.order_by_token();
  gate_weights<float>(r.weight.data(), in.scores.data(), maps, in.rule);
  return r;
}

/// Writes the scores to `computed` if it is not null.
Routed on_device(const Input& in, uint64_t run, const Ints& slot_choice = {},
                 Floats* computed = nullptr) {
  begin_run(run);
  const auto [tokens, experts, k, capacity] = in.shape;
  Routed r(in.shape);
  if (in.part) r.slot_choice = slot_choice;
  const DeviceArray<float> scores(gpu(), in.scores), logits(gpu(), in.logits);
  const DeviceArray<int32_t> used(gpu(), in.used), expert(gpu(), r.expert),
      choice_slot(gpu(), r.choice_slot), slot_choice_there(gpu(), r.slot_choice),
      counts(gpu(), r.counts);
  const DeviceArray<float> weight(gpu(), r.weight);
  const DeviceArray<char> work(gpu(), gpu().top_k_work_bytes(tokens, experts, k));
  const OwnStream stream;
  gpu().fill(work.data(), 0xff, work.size(), stream);
  gpu().route_top_k({.tokens = tokens,
                     .experts = experts,
                     .k = k,
                     .capacity = capacity,
                     .logits = in.logits.empty() ? nullptr : logits.data(),
                     .scores = scores.data(),
                     .used_before = in.used.empty() ? nullptr : used.data(),
                     .expert = expert.data(),
                     .choice_slot = choice_slot.data(),
                     .slot_choice = slot_choice_there.data(),
                     .counts = counts.data(),
                     .weight = weight.data(),
                     .rule = in.rule,
                     .score = in.score,
                     .first_token = in.first_token,
                     .part = in.part,
                     .work = work.data()},
                    stream);
  stream.finish();
  r.expert = expert.read();
  r.choice_slot = choice_slot.read();
  r.slot_choice = slot_choice_there.read();
  r.counts = counts.read();
  r.weight = weight.read();
  if (computed != nullptr) *computed = scores.read();
  return r;
}

Floats positive(int64_t n, uint64_t stream) {
  Floats v = random_values<float>(n, stream);
  for (float& x : v) x = std::abs(x);
  return v;
}

/// With every rule, in two orders of threads.
void same_as_cpu(Shape s, const Floats& scores, const Ints& used = {}) {
  INFO(s.tokens << " tokens, " << s.experts << " experts, k " << s.k << ", capacity "
                << s.capacity);
  uint64_t run = 0;
  for (const WeightRule rule : {WeightRule::kProb, WeightRule::kRenorm, WeightRule::kOne}) {
    const Input in = {s, scores, used, rule};
    const Routed want = on_cpu(in);
    REQUIRE(on_device(in, run++) == want);
    REQUIRE(on_device(in, run) == want);
  }
}

/// Tokens that do not fill a block or a warp, more than one chunk, more experts than lanes, more
/// choices of a chunk than threads.
const std::vector<Shape> kRoutes = {{1, 1, 1, 1},     {5, 3, 2, 2},      {33, 4, 4, 9},
                                    {300, 7, 2, 40},  {513, 40, 3, 30},  {70, 300, 8, 2},
                                    {64, 8, 1, 0},    {256, 16, 1, 300}, {140, 100, 2, 3},
                                    {40, 1000, 3, 1}, {150, 20, 12, 70}};

}  // namespace

TEST_CASE("routing on the device gives the CPU's maps, drops and weights") {
  for (const Shape s : kRoutes) same_as_cpu(s, positive(s.tokens * s.experts, 1));
}

TEST_CASE("routing on the device computes the gate's scores from logits and routes by them") {
  for (const Shape s : kRoutes)
    for (const ScoreRule score : {ScoreRule::kSoftmax, ScoreRule::kSigmoid}) {
      Input in = {.shape = s, .rule = WeightRule::kRenorm, .score = score};
      const Floats logits = random_values<float>(s.tokens * s.experts, 4);
      const DeviceArray<float> from(gpu(), logits), to(gpu(), logits);
      const OwnStream stream;
      gpu().kernels->gate_scores(to.data(), from.data(), score, s.tokens, s.experts, stream);
      stream.finish();
      const Floats scores = to.read();
      in.scores = scores;
      const Routed want = on_cpu(in);
      in.logits = logits, in.scores.assign(logits.size(), -7);
      REQUIRE(on_device(in, 2, {}, &in.scores) == want);
      REQUIRE(in.scores == scores);
    }
}

TEST_CASE("routing on the device gives ties to the lower expert") {
  for (const Shape s : kRoutes) {
    Floats scores = positive(s.tokens * s.experts, 3);
    for (float& p : scores) p = std::floor(p * 3) / 4;  // 0, 0.25 or 0.5
    for (size_t i = 0; i < scores.size(); i += 5) scores[i] = -0.0F;
    same_as_cpu(s, scores);
    same_as_cpu(s, Floats(scores.size(), 0.5F));  // all tokens on the first experts
  }
}

TEST_CASE("routing on the device ranks infinite scores as the CPU does") {
  const Shape s = {40, 9, 3, 6};
  Floats scores = random_values<float>(s.tokens * s.experts, 3);
  for (size_t i = 0; i < scores.size(); i += 4) scores[i] = i % 8 ? INFINITY : -INFINITY;
  same_as_cpu(s, scores);
  // -infinity for all experts would mean that a token can choose none, which only the host knows.
  for (const float all : {std::numeric_limits<float>::lowest(), INFINITY}) {
    same_as_cpu(s, Floats(scores.size(), all));
  }
}

TEST_CASE("routing on the device begins at the places that earlier parts left") {
  same_as_cpu({90, 6, 2, 20}, positive(90 * 6, 1), {0, 5, 19, 20, 7, 1});
}

TEST_CASE("a token whose scores hold a NaN is marked on the device and gets no place") {
  Input in = {{50, 70, 2, 50}, positive(50 * 70, 7)};
  in.scores[17 * 70 + 64] = NAN;
  const Routed r = on_device(in, 0);
  for (size_t choice = 0; choice < 100; ++choice) {
    const bool marked = choice / 2 == 17;
    CHECK((r.expert[choice] == kernels::kNanScores) == marked);
    CHECK((r.choice_slot[choice] == -1) == marked);
  }
}

TEST_CASE("parts of a batch on the device take the CPU's places and leave the others") {
  Rng rng(3);
  for (uint64_t round = 0; round < 60; ++round) {
    const int64_t k = 1 + static_cast<int64_t>(round % 2), experts = k + rng.below(12);
    const int64_t tokens = 1 + rng.below(400);
    // Capacity that binds, by a little or for most; none at all; and room for every token.
    const std::vector<int64_t> capacities = {tokens * k / experts, 1 + tokens / 10, 0, tokens};
    const Shape shape = {tokens, experts, k, capacities[round / 2 % 4]};
    INFO(tokens << " tokens, " << experts << " experts, k " << k << ", capacity "
                << shape.capacity);
    Input all = {shape, positive(tokens * experts, round)};
    for (float& p : all.scores) p = std::floor(p * 50) / 64;  // coarse, so that scores tie
    const Floats bias = random_values<float>(experts, round + 1, 0.5);
    for (size_t i = 0; i < all.scores.size(); ++i) {
      all.scores[i] += bias[i % static_cast<size_t>(experts)];
    }
    Input in = {shape};
    in.used.assign(static_cast<size_t>(experts), 0);
    in.rule = static_cast<WeightRule>(round % 3);
    in.part = true;
    Ints slots(static_cast<size_t>(experts * shape.capacity), -1), choices;
    for (int64_t here; in.first_token < tokens; in.first_token += here) {
      here = std::min(tokens - in.first_token, 1 + rng.below(150));
      in.shape.tokens = here;
      const auto rows = [&](const Floats& of) {
        const auto from = of.begin() + in.first_token * experts;
        return Floats(from, from + here * experts);
      };
      in.scores = rows(all.scores);
      const Routed want = on_cpu(in, slots);
      REQUIRE(on_device(in, round, slots) == want);
      in.used = want.counts, slots = want.slot_choice;
      choices.insert(choices.end(), want.choice_slot.begin(), want.choice_slot.end());
    }
    if (k > 1) continue;
    // First choices come in token order, so the parts make the whole batch's routing.
    const Routed whole = on_cpu(all);
    REQUIRE((slots == whole.slot_choice && choices == whole.choice_slot));
    REQUIRE(in.used == whole.counts);
  }
}

TEST_CASE("more experts or choices than routing on the device has room for are refused") {
  const auto refused = [](Input in, const std::string& why) {
    in.scores = positive(in.shape.tokens * in.shape.experts, 1);
    CHECK_THROWS_WITH(on_device(in, 0, Ints(2, -1)), Catch::Contains(why));
  };
  refused({.shape = {1, 1025, 1, 1}}, "at most 1024 experts");
  refused({.shape = {1, 2, 2, 1}, .first_token = int64_t{1} << 30, .part = true},
          "2^31 - 1 choices");
  refused({.shape = {1, 2, 3, 1}},
          "cuda: top_k got k = 3 choices per token; at most the number of experts, 2, is allowed");
}

TEST_CASE("routing on the device agrees at the size of a training step", "[large]") {
  for (const Shape s : {Shape{16384, 64, 1, 320}, {16384, 64, 2, 640}, {8192, 8, 1, 1280}}) {
    same_as_cpu(s, positive(s.tokens * s.experts, 1));
  }
}
