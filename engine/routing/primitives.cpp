#include "engine/routing/primitives.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "engine/base/errors.h"

namespace moe {
namespace {

constexpr int kLanes = 8;

[[noreturn]] void fail_nan(int64_t token) {
  throw run_error("gate: scores of token {} hold a NaN", token);
}

// Lanes of fixed width, which the compiler turns into vector instructions: column i belongs to lane
// i % kLanes. A strict comparison keeps the first of equals within a lane.
class LaneArgmax {
 public:
  LaneArgmax() {
    for (int l = 0; l < kLanes; ++l) {
      best_[l] = -std::numeric_limits<float>::infinity();
      index_[l] = l;
      nan_[l] = 0;
    }
  }
  void add(const float* x, int32_t first, int lanes) {
    for (int l = 0; l < lanes; ++l) {
      const bool better = x[l] > best_[l];
      best_[l] = better ? x[l] : best_[l];
      index_[l] = better ? first + l : index_[l];
      nan_[l] |= x[l] != x[l];
    }
  }
  bool saw_nan() const {
    int32_t any = 0;
    for (int l = 0; l < kLanes; ++l) any |= nan_[l];
    return any != 0;
  }
  int32_t result() const {
    int winner = 0;
    for (int l = 1; l < kLanes; ++l) {
      const bool tie = best_[l] == best_[winner] && index_[l] < index_[winner];
      if (best_[l] > best_[winner] || tie) winner = l;
    }
    return index_[winner];
  }

 private:
  float best_[kLanes];
  int32_t index_[kLanes];
  int32_t nan_[kLanes];
};

// Ascending order of keys is descending order of scores, then ascending order of tokens.
uint64_t sort_key(float score, int64_t token) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 counts as 0
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
    throw user_error("gate: {} scores are no matrix with {} experts a row", size, experts);
  }
  tokens = size / experts;
}

std::vector<int32_t> argmax_rows(const ScoreMatrix& s) {
  std::vector<int32_t> best(static_cast<size_t>(s.tokens));
  const int64_t whole = s.experts - s.experts % kLanes;
  for (int64_t t = 0; t < s.tokens; ++t) {
    const float* row = s.scores.data() + t * s.experts;
    LaneArgmax argmax;
    for (int64_t e = 0; e < whole; e += kLanes)
      argmax.add(row + e, static_cast<int32_t>(e), kLanes);
    argmax.add(row + whole, static_cast<int32_t>(whole), static_cast<int>(s.experts - whole));
    if (argmax.saw_nan()) fail_nan(t);
    best[static_cast<size_t>(t)] = argmax.result();
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
    int32_t* top = best.data() + t * k;  // sorted; an equal newcomer goes behind
    int64_t held = 0;
    for (int64_t e = 0; e < s.experts; ++e) {
      if (row[e] != row[e]) fail_nan(t);
      if (held == k && row[e] <= row[top[k - 1]]) continue;
      int64_t at = held < k ? held++ : k - 1;
      for (; at > 0 && row[top[at - 1]] < row[e]; --at) top[at] = top[at - 1];
      top[at] = static_cast<int32_t>(e);
    }
  }
  return best;
}

std::vector<int32_t> topk_col(const ScoreMatrix& s, int64_t expert, int64_t n) {
  if (expert < 0 || expert >= s.experts) {
    throw user_error("gate: there is no expert {}, experts = {}", expert, s.experts);
  }
  if (n < 0 || n > s.tokens) {
    throw user_error("gate: n = {} must be between 0 and tokens = {}", n, s.tokens);
  }
  std::vector<uint64_t> keys(static_cast<size_t>(s.tokens));
  for (int64_t t = 0; t < s.tokens; ++t) {
    const float score = s.scores[static_cast<size_t>(t * s.experts + expert)];
    if (score != score) fail_nan(t);
    keys[static_cast<size_t>(t)] = sort_key(score, t);
  }
  const auto end = keys.begin() + n;
  std::nth_element(keys.begin(), end, keys.end());
  std::sort(keys.begin(), end);
  return tokens_of(std::span(keys).first(static_cast<size_t>(n)));
}

std::vector<double> sum_cols(const ScoreMatrix& s) {
  std::vector<double> sums(static_cast<size_t>(s.experts));
  for (int64_t t = 0; t < s.tokens; ++t) {
    const float* row = s.scores.data() + t * s.experts;
    for (size_t e = 0; e < sums.size(); ++e) sums[e] += row[e];
  }
  return sums;
}

std::vector<int64_t> histogram(std::span<const int32_t> values, int64_t bins) {
  if (bins < 0) throw user_error("gate: bins = {} must not be negative", bins);
  std::vector<int64_t> counts(static_cast<size_t>(bins));
  for (const int32_t value : values) {
    if (value < 0) continue;
    if (value >= bins) throw user_error("gate: value {} has no bin, bins = {}", value, bins);
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
