#include "engine/routing/scores.h"

#include <bit>
#include <cstddef>

#include "engine/base/rng.h"

namespace moe {
namespace {

// With G Gumbel noise, exp(G) is 1 / x for an x with exponential distribution, so exp(log p + G) is
// p / x: the softmax needs no exponential function, and the order of experts only one logarithm.

/// Returns -log(1 - h / 2^32), at least 1e-10, with a relative error below 2e-5. Small values are
/// as exact as large ones, because they decide which expert is best.
[[gnu::always_inline]] inline float exponential(uint32_t h) {
  const float v = (static_cast<float>(static_cast<int32_t>(h >> 1)) + 0.25f) * 0x1p-31f;
  const float u = (static_cast<float>(static_cast<int32_t>(~h >> 1)) + 0.25f) * 0x1p-31f;
  // -log(u) is n log 2 - log(m) with m in [1, 2); below v = 1/2 it is -log(1 - v). Both logarithms
  // are 2 atanh(t).
  const auto bits = std::bit_cast<uint32_t>(u);
  const float m = std::bit_cast<float>((bits & 0x7FFFFFu) | 0x3F800000u);
  const auto n = static_cast<float>(127 - static_cast<int32_t>(bits >> 23));
  const bool small = static_cast<int32_t>(h) >= 0;
  const float t = (small ? v : 1.0f - m) / (small ? 2.0f - v : 1.0f + m), q = t * t;
  const float series = 1 / 3.0f + q * (1 / 5.0f + q * (1 / 7.0f + q * (1 / 9.0f + q / 11.0f)));
  return (small ? 0.0f : n * 0.693147181f) + 2 * t * (1 + q * series);
}

[[gnu::always_inline]] inline void odds_of(const float* popularity, size_t experts, uint32_t key,
                                           float* odds) {
  for (size_t e = 0; e < experts; ++e) {
    odds[e] = popularity[e] / exponential(hash32(static_cast<uint32_t>(e), key));
  }
}

using Odds = void (*)(const float* popularity, size_t experts, uint32_t key, float* odds);

void odds_base(const float* popularity, size_t experts, uint32_t key, float* odds) {
  odds_of(popularity, experts, key, odds);
}

#if defined(__x86_64__)
// Without fused multiply-add, so the bits are those of odds_base().
[[gnu::target("avx2")]] void odds_avx2(const float* popularity, size_t experts, uint32_t key,
                                       float* odds) {
  odds_of(popularity, experts, key, odds);
}

Odds odds_function() {
  return __builtin_cpu_supports("avx2") ? odds_avx2 : odds_base;
}
#else
Odds odds_function() {
  return odds_base;
}
#endif

/// Divides the odds by their sum.
void softmax(float* odds, size_t experts) {
  constexpr size_t kSums = 8;
  float sums[kSums] = {};
  size_t e = 0;
  for (; e + kSums <= experts; e += kSums) {
    for (size_t i = 0; i < kSums; ++i) sums[i] += odds[e + i];
  }
  float sum = 0;
  for (const float part : sums) sum += part;
  for (; e < experts; ++e) sum += odds[e];
  const float scale = 1 / sum;
  for (e = 0; e < experts; ++e) odds[e] *= scale;
}

}  // namespace

void ScoreLaw::write(kernels::ScoreRule rule, int64_t first, int64_t count, float* scores) const {
  static const Odds odds = odds_function();
  const size_t experts = popularity.size();
  for (int64_t t = first; t < first + count; ++t, scores += experts) {
    odds(popularity.data(), experts, hash32(static_cast<uint64_t>(t), key), scores);
    if (rule == kernels::ScoreRule::kSoftmax) {
      softmax(scores, experts);
    } else {
      for (size_t e = 0; e < experts; ++e) {
        const float x = scores[e] * static_cast<float>(experts);
        scores[e] = x / (1 + x);
      }
    }
  }
}

ScoreLaw even_scores(int64_t experts, int64_t tokens, uint32_t key) {
  const auto n = static_cast<size_t>(experts);
  return {std::vector<float>(n, 1.0f / static_cast<float>(experts)), tokens, key};
}

}  // namespace moe
