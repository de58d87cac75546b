#include "engine/routing/primitives.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "engine/base/errors.h"

namespace moe {
namespace {

constexpr float kCannotChoose = -std::numeric_limits<float>::infinity();

[[noreturn]] void fail_nan(int64_t token) {
  throw run_error("gate: scores of token {} hold a NaN", token);
}

// The argmax over a row, block by block: four SIMD vectors of four elements, so that four
// comparisons run at once. Explicit vector types, because the plain loop is not vectorized. A lane
// is an element of a vector here.
class LaneArgmax {
 public:
  static constexpr int kLanes = 4;
  static constexpr int kVectors = 4;
  static constexpr int kBlock = kLanes * kVectors;

  LaneArgmax() {
    for (Floats& best : best_) best = Floats{} + kCannotChoose;
  }
  /// Takes columns first .. first + kBlock - 1. The strict comparison keeps the first of equal
  /// values in a lane.
  void add(const float* block, int32_t first) {
    for (int v = 0; v < kVectors; ++v) {
      Floats x;
      std::memcpy(&x, block + v * kLanes, sizeof x);
      const Ints better = x > best_[v];
      best_[v] = better ? x : best_[v];
      first_[v] = better ? Ints{} + first : first_[v];
      nan_ |= x != x;
    }
  }
  bool saw_nan() const { return (nan_[0] | nan_[1] | nan_[2] | nan_[3]) != 0; }
  int32_t result() const {
    Floats best = best_[0];
    for (int v = 1; v < kVectors; ++v) best = best_[v] > best ? best_[v] : best;
    const float top = std::max(std::max(best[0], best[1]), std::max(best[2], best[3]));
    Ints index = Ints{} + std::numeric_limits<int32_t>::max();
    for (int v = 0; v < kVectors; ++v) {
      const Ints here = first_[v] + Ints{0, 1, 2, 3} + v * kLanes;
      index = best_[v] == top && here < index ? here : index;
    }
    return std::min(std::min(index[0], index[1]), std::min(index[2], index[3]));
  }

 private:
  using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
  using Ints = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

  Floats best_[kVectors];
  Ints first_[kVectors] = {};  // first column of the block that best_ comes from
  Ints nan_ = {};
};

// Ascending keys are descending scores, then ascending tokens.
uint64_t sort_key(float score, int64_t token) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // makes -0 equal to 0
  const uint32_t sign = 0x80000000u;
  const uint32_t ascending = (bits & sign) ? ~bits : bits | sign;
  return (static_cast<uint64_t>(~ascending) << 32) | static_cast<uint32_t>(token);
}

std::vector<int32_t> tokens_of(std::span<const uint64_t> keys) {
  std::vector<int32_t> tokens(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) tokens[i] = static_cast<int32_t>(keys[i] & 0xFFFFFFFFu);
  return tokens;
}

}  // namespace

ScoreMatrix::ScoreMatrix(std::span<const float> all, int64_t num_experts)
    : scores(all), tokens(0), experts(num_experts) {
  const auto size = static_cast<int64_t>(all.size());
  if (experts <= 0 || size % experts != 0 || experts > std::numeric_limits<int32_t>::max()) {
    throw user_error("gate: {} scores do not form rows of {} experts, one per token", size,
                     experts);
  }
  tokens = size / experts;
}

std::vector<int32_t> argmax_rows(const ScoreMatrix& s) {
  std::vector<int32_t> best(static_cast<size_t>(s.tokens));
  constexpr int64_t kBlock = LaneArgmax::kBlock;
  const int64_t rest = s.experts % kBlock;
  // The last block of a row, filled up with -infinity, which never wins.
  float last[kBlock];
  std::fill_n(last, kBlock, kCannotChoose);
  for (int64_t t = 0; t < s.tokens; ++t) {
    const float* row = s.scores.data() + t * s.experts;
    LaneArgmax argmax;
    int64_t e = 0;
    for (; e + kBlock <= s.experts; e += kBlock) argmax.add(row + e, static_cast<int32_t>(e));
    if (rest > 0) {
      std::copy_n(row + e, rest, last);
      argmax.add(last, static_cast<int32_t>(e));
    }
    if (argmax.saw_nan()) fail_nan(t);
    const int32_t expert = argmax.result();
    best[static_cast<size_t>(t)] = row[expert] == kCannotChoose ? -1 : expert;
  }
  return best;
}

std::vector<int32_t> topk_rows(const ScoreMatrix& s, int64_t k) {
  if (k < 1 || k > s.experts) {
    throw user_error("gate: k = {} must be between 1 and experts = {}", k, s.experts);
  }
  if (k == 1) return argmax_rows(s);
  std::vector<int32_t> best(static_cast<size_t>(s.tokens * k));
  for (int64_t t = 0; t < s.tokens; ++t) {
    const float* row = s.scores.data() + t * s.experts;
    int32_t* top = best.data() + t * k;  // sorted; a new equal score goes behind
    float worst = 0;                     // the lowest score in `top`
    for (int64_t e = 0; e < s.experts; ++e) {
      if (e >= k && row[e] <= worst) continue;
      if (row[e] != row[e]) fail_nan(t);
      int64_t at = std::min(e, k - 1);
      for (; at > 0 && row[top[at - 1]] < row[e]; --at) top[at] = top[at - 1];
      top[at] = static_cast<int32_t>(e);
      worst = row[top[std::min(e, k - 1)]];
    }
    for (int64_t j = k; worst == kCannotChoose && j > 0 && row[top[j - 1]] == worst; --j) {
      top[j - 1] = -1;
    }
  }
  return best;
}

std::vector<int32_t> topk_col(const ScoreMatrix& s, int64_t expert, int64_t n) {
  if (expert < 0 || expert >= s.experts) {
    throw user_error("gate: there is no expert {}; allowed: 0 to experts - 1, experts = {}", expert,
                     s.experts);
  }
  if (n < 0 || n > s.tokens) {
    throw user_error("gate: n = {} must be between 0 and tokens = {}", n, s.tokens);
  }
  const auto count = static_cast<size_t>(n);
  std::vector<uint64_t> keys;  // of the best tokens so far and of some worse ones
  keys.reserve(2 * count + 1);
  uint64_t worst =
      std::numeric_limits<uint64_t>::max();  // of the keys that were cut off, the least
  const auto cut = [&] {
    if (keys.size() <= count) return;
    std::nth_element(keys.begin(), keys.begin() + n, keys.end());
    worst = keys[count];
    keys.resize(count);
  };
  for (int64_t t = 0; t < s.tokens; ++t) {
    const float score = s.scores[static_cast<size_t>(t * s.experts + expert)];
    if (score != score) fail_nan(t);
    if (score == kCannotChoose) continue;
    const uint64_t key = sort_key(score, t);
    if (key >= worst) continue;
    keys.push_back(key);
    if (keys.size() > 2 * count) cut();
  }
  cut();
  std::sort(keys.begin(), keys.end());
  return tokens_of(keys);
}

std::vector<double> sum_cols(const ScoreMatrix& s) {
  std::vector<double> sums(static_cast<size_t>(s.experts));
  for (int64_t t = 0; t < s.tokens; ++t) {
    const float* row = s.scores.data() + t * s.experts;
    for (size_t e = 0; e < sums.size(); ++e) sums[e] += row[e] == kCannotChoose ? 0 : row[e];
  }
  return sums;
}

std::vector<int64_t> histogram(std::span<const int32_t> values, int64_t bins) {
  if (bins < 0) throw user_error("gate: bins = {} must not be negative", bins);
  std::vector<int64_t> counts(static_cast<size_t>(bins));
  for (const int32_t value : values) {
    if (value < 0) continue;
    if (value >= bins)
      throw user_error("gate: value {} has no bin; it must be below bins = {}", value, bins);
    ++counts[static_cast<size_t>(value)];
  }
  return counts;
}

std::vector<int32_t> order_by_score(std::span<const float> scores) {
  std::vector<uint64_t> keys(scores.size());
  for (size_t t = 0; t < scores.size(); ++t) {
    if (scores[t] != scores[t]) fail_nan(static_cast<int64_t>(t));
    keys[t] = sort_key(scores[t], static_cast<int64_t>(t));
  }
  std::sort(keys.begin(), keys.end());
  return tokens_of(keys);
}

}  // namespace moe
