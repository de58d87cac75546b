// Routing on the GPU against engine/routing, which routes on the CPU.
#include <cmath>

#include "engine/routing/gate.h"
#include "engine/routing/primitives.h"
#include "tests/gpu/gpu.h"
#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;
using kernels::WeightRule;

namespace {

using Ints = std::vector<int32_t>;
using Floats = std::vector<float>;

struct Shape {
  int64_t tokens, experts, k, capacity;
};

/// Scores that choose and probabilities that weigh, [tokens, experts]; used [experts] or empty.
struct Input {
  Shape shape;
  Floats scores, probabilities;
  Ints used;
  WeightRule rule;
  int64_t first_token = 0;
  bool part = false;
};

/// All maps of one routing. slot_choice holds what earlier parts left there.
struct Routed {
  explicit Routed(Shape s)
      : expert(static_cast<size_t>(s.tokens * s.k), -7),
        choice_slot(expert.size(), -7),
        slot_choice(static_cast<size_t>(s.experts * s.capacity), -1),
        counts(static_cast<size_t>(s.experts), -7),
        weight(expert.size(), -7) {}
  bool operator==(const Routed&) const = default;

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
  gate_weights<float>(r.weight.data(), in.probabilities.data(), maps, in.rule);
  return r;
}

Routed on_gpu(const Input& in, const Ints& slot_choice = {}) {
  const auto [tokens, experts, k, capacity] = in.shape;
  Routed r(in.shape);
  if (in.part) r.slot_choice = slot_choice;
  const DeviceArray<float> scores(gpu(), in.scores), probabilities(gpu(), in.probabilities);
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
                     .scores = scores.data(),
                     .probabilities = probabilities.data(),
                     .used_before = in.used.empty() ? nullptr : used.data(),
                     .expert = expert.data(),
                     .choice_slot = choice_slot.data(),
                     .slot_choice = slot_choice_there.data(),
                     .counts = counts.data(),
                     .weight = weight.data(),
                     .rule = in.rule,
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
  return r;
}

Floats positive(int64_t n, uint64_t stream) {
  Floats v = random_values<float>(n, stream);
  for (float& x : v) x = std::abs(x);
  return v;
}

/// scores may be empty: drawn.
void same_as_cpu(Shape s, Floats scores = {}, const Ints& used = {}) {
  INFO(s.tokens << " tokens, " << s.experts << " experts, k " << s.k << ", capacity "
                << s.capacity);
  if (scores.empty()) scores = positive(s.tokens * s.experts, 1);
  for (const WeightRule rule : {WeightRule::kProb, WeightRule::kRenorm, WeightRule::kOne}) {
    const Input in = {s, scores, positive(s.tokens * s.experts, 2), used, rule};
    const Routed want = on_cpu(in);
    REQUIRE(on_gpu(in) == want);
    REQUIRE(on_gpu(in) == want);
  }
}

/// Tokens that do not fill a block or a warp, more than one chunk, more experts than lanes.
const std::vector<Shape> kShapes = {{1, 1, 1, 1},    {5, 3, 2, 2},     {33, 4, 4, 9},
                                    {300, 7, 2, 40}, {513, 40, 3, 30}, {70, 300, 8, 2},
                                    {64, 8, 1, 0},   {256, 16, 1, 300}};

}  // namespace

TEST_CASE("routing on the GPU gives the CPU's maps, drops and weights") {
  for (const Shape s : kShapes) same_as_cpu(s);
}

TEST_CASE("routing on the GPU gives ties to the lower expert") {
  for (const Shape s : kShapes) {
    Floats scores = positive(s.tokens * s.experts, 3);
    for (float& p : scores) p = std::floor(p * 3) / 4;  // 0, 0.25 or 0.5
    same_as_cpu(s, scores);
    same_as_cpu(s, Floats(scores.size(), 0.5f));  // all tokens on the first experts
  }
}

TEST_CASE("routing on the GPU begins at the places that earlier parts left") {
  same_as_cpu({90, 6, 2, 20}, {}, {0, 5, 19, 20, 7, 1});
}

TEST_CASE("two parts of a batch on the GPU fill one map of places as the CPU fills it") {
  const Shape half = {150, 7, 2, 40};
  Input in = {half, positive(150 * 7, 4), positive(150 * 7, 5), Ints(7, 0), WeightRule::kRenorm, 0,
              true};
  const Ints empty(7 * 40, -1);
  const Routed first = on_cpu(in, empty);
  REQUIRE(on_gpu(in, empty) == first);
  in.used = first.counts;
  in.first_token = 150;
  in.scores = positive(150 * 7, 6);
  REQUIRE(on_gpu(in, first.slot_choice) == on_cpu(in, first.slot_choice));
}

TEST_CASE("a token whose scores hold a NaN is marked on the GPU and gets no place") {
  const Shape s = {50, 70, 2, 50};
  Input in = {s, positive(50 * 70, 7), positive(50 * 70, 8), {}, WeightRule::kProb};
  in.scores[17 * 70 + 64] = NAN;
  const Routed r = on_gpu(in);
  for (size_t choice = 0; choice < 100; ++choice) {
    const bool marked = choice / 2 == 17;
    CHECK((r.expert[choice] == kernels::kNanScores) == marked);
    CHECK((r.choice_slot[choice] == -1) == marked);
  }
}

TEST_CASE("routing on the GPU agrees at the size of a training step", "[large]") {
  same_as_cpu({16384, 64, 1, 320});
  same_as_cpu({16384, 64, 2, 640});
  same_as_cpu({8192, 8, 1, 1280});
}
