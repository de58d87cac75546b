// Bulk primitives over the scores of one rank's tokens, row-major [tokens, experts]: what built-in
// gates are made of and what Lua gates call instead of looping over tokens. Pure functions. Ties go
// to the lower index. A NaN is never ranked: RunError "gate: scores of token N hold a NaN".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moe {

/// scores [tokens, experts]. Throws UserError unless experts > 0 divides the number of scores.
struct ScoreMatrix {
  std::span<const float> scores;
  int64_t tokens;
  int64_t experts;

  ScoreMatrix(std::span<const float> scores, int64_t experts);
};

/// [tokens]: the expert with the highest score.
std::vector<int32_t> argmax_rows(const ScoreMatrix& s);

/// [tokens, k]: the k best experts of every token, best first. Throws UserError unless
/// 1 <= k <= experts.
std::vector<int32_t> topk_rows(const ScoreMatrix& s, int64_t k);

/// [n]: the n tokens that score best for an expert, best first. Throws UserError unless
/// 0 <= expert < experts and 0 <= n <= tokens.
std::vector<int32_t> topk_col(const ScoreMatrix& s, int64_t expert, int64_t n);

/// [experts]: the sum of every column, tokens ascending. NaN passes through.
std::vector<double> sum_cols(const ScoreMatrix& s);

/// [bins]: how often each of 0 .. bins - 1 occurs; negative values (no choice) are not counted.
/// Throws UserError for a value of `bins` or more.
std::vector<int64_t> histogram(std::span<const int32_t> values, int64_t bins);

/// [scores.size()]: the token numbers by score, best first, equal scores in token order.
std::vector<int32_t> order_by_score(std::span<const float> scores);

}  // namespace moe
