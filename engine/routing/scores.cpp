#include "engine/routing/scores.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <tuple>

#include "engine/base/rng.h"
#include "engine/routing/primitives.h"

namespace moe {
namespace {

// With G Gumbel noise, exp(G) is 1 / x for an x with exponential distribution, so exp(log p + G) is
// p / x: the softmax needs no exponential function, and the order of experts only one logarithm.

/// Returns h / 2^32, at least 1e-10.
[[gnu::always_inline]] inline float fraction(uint32_t h) {
  return (static_cast<float>(static_cast<int32_t>(h >> 1)) + 0.25f) * 0x1p-31f;
}

/// Returns -log(1 - h / 2^32), at least 1e-10, with a relative error below 2e-5. Small values are
/// as exact as large ones, because they decide which expert is best.
[[gnu::always_inline]] inline float exponential(uint32_t h) {
  const float v = fraction(h), u = fraction(~h);
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

/// The experts with the best odds of one token so far, best first.
class BestOdds {
 public:
  explicit BestOdds(size_t size) : odds_(size), experts_(size) {}

  void clear() { std::fill(odds_.begin(), odds_.end(), -1.0f); }
  float least() const { return odds_.back(); }
  void add(float odds, size_t expert) {
    if (!(odds > least())) return;
    size_t at = odds_.size() - 1;
    for (; at > 0 && odds > odds_[at - 1]; --at) {
      odds_[at] = odds_[at - 1];
      experts_[at] = experts_[at - 1];
    }
    odds_[at] = odds;
    experts_[at] = static_cast<int32_t>(expert);
  }
  /// Whether two odds are so near to each other that the scores may be equal.
  bool has_tie() const {
    for (size_t i = 1; i < odds_.size(); ++i) {
      if (odds_[i] >= odds_[i - 1] * (1 - 1e-6f)) return true;
    }
    return false;
  }
  const int32_t* experts() const { return experts_.data(); }

 private:
  std::vector<float> odds_;
  std::vector<int32_t> experts_;
};

/// The experts by descending popularity, so that a token's best odds are found early. The number is
/// a multiple of kBlock; those that are added have a popularity below 0.
struct Ranked {
  static constexpr size_t kBlock = 16;

  explicit Ranked(const std::vector<float>& all) : experts(all.size()), popularity(all) {
    std::iota(experts.begin(), experts.end(), 0);
    std::sort(experts.begin(), experts.end(),
              [&](uint32_t a, uint32_t b) { return std::tie(all[b], a) < std::tie(all[a], b); });
    for (size_t i = 0; i < all.size(); ++i) popularity[i] = all[experts[i]];
    const size_t size = (all.size() + kBlock - 1) / kBlock * kBlock;
    experts.resize(size);
    popularity.resize(size, -2.0f);
  }

  std::vector<uint32_t> experts;
  std::vector<float> popularity;
};

/// Adds the odds of all experts to `best`. As -log(1 - v) is at least v, odds above `least` need v
/// below popularity / least; few experts pass this test, which is cheap.
[[gnu::always_inline]] inline void best_of(const Ranked& ranked, uint32_t key, BestOdds& best) {
  constexpr size_t kBlock = Ranked::kBlock;
  constexpr float kExact = 1 - 1e-4f;  // more than the error of exponential() and of rounding
  for (size_t first = 0; first < ranked.experts.size(); first += kBlock) {
    const uint32_t* const experts = &ranked.experts[first];
    const float* const popularity = &ranked.popularity[first];
    const float least = best.least() * kExact;
    uint32_t hash[kBlock], pass[kBlock], any = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      hash[i] = hash32(experts[i], key);
      pass[i] = fraction(hash[i]) * least <= popularity[i] ? 1 : 0;
      any |= pass[i];
    }
    for (size_t i = 0; any != 0 && i < kBlock; ++i) {
      if (pass[i] != 0) best.add(popularity[i] / exponential(hash[i]), experts[i]);
    }
  }
}

/// The functions above, for the processor.
struct Functions {
  void (*odds)(const float* popularity, size_t experts, uint32_t key, float* odds);
  void (*best)(const Ranked& ranked, uint32_t key, BestOdds& best);
};

void odds_base(const float* popularity, size_t experts, uint32_t key, float* odds) {
  odds_of(popularity, experts, key, odds);
}

void best_base(const Ranked& ranked, uint32_t key, BestOdds& best) {
  best_of(ranked, key, best);
}

#if defined(__x86_64__)
// Without fused multiply-add, so the bits are those of odds_base().
[[gnu::target("avx2")]] void odds_avx2(const float* popularity, size_t experts, uint32_t key,
                                       float* odds) {
  odds_of(popularity, experts, key, odds);
}

[[gnu::target("avx2")]] void best_avx2(const Ranked& ranked, uint32_t key, BestOdds& best) {
  best_of(ranked, key, best);
}

Functions make_functions() {
  if (__builtin_cpu_supports("avx2")) return {odds_avx2, best_avx2};
  return {odds_base, best_base};
}
#else
Functions make_functions() {
  return {odds_base, best_base};
}
#endif

const Functions& functions() {
  static const Functions made = make_functions();
  return made;
}

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
  const auto odds = functions().odds;
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

std::vector<int32_t> ScoreLaw::best(int64_t k, int64_t first, int64_t count) const {
  const auto best_odds = functions().best;
  const auto experts = static_cast<int64_t>(popularity.size());
  std::vector<int32_t> all;
  all.reserve(static_cast<size_t>(count * k));
  const Ranked ranked(popularity);
  BestOdds best(static_cast<size_t>(std::min(k + 1, experts)));  // one more, for ties with it
  std::vector<float> scores(popularity.size());
  for (int64_t t = first; t < first + count; ++t) {
    best.clear();
    best_odds(ranked, hash32(static_cast<uint64_t>(t), key), best);
    if (best.has_tie()) {
      write(kernels::ScoreRule::kSoftmax, t, 1, scores.data());
      const std::vector<int32_t> row = topk_rows({scores, experts}, k);
      all.insert(all.end(), row.begin(), row.end());
    } else {
      all.insert(all.end(), best.experts(), best.experts() + k);
    }
  }
  return all;
}

ScoreLaw even_scores(int64_t experts, int64_t tokens, uint32_t key) {
  const auto n = static_cast<size_t>(experts);
  return {std::vector<float>(n, 1.0f / static_cast<float>(experts)), tokens, key};
}

}  // namespace moe
