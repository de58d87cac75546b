// Bulk functions on the scores of one rank's tokens, row-major [tokens, experts]. Built-in gates
// consist of them, and Lua gates call them instead of looping over tokens. Pure functions. Ties go
// to the lower index. A token cannot choose an expert whose score is -infinity; such scores are
// never ranked. A NaN is not ranked either but throws RunError "gate: scores of token N hold a
// NaN". These functions take no slots; RoutingBuilder in gate.h does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moe {

/// scores: [tokens, experts]. Throws UserError unless experts > 0 divides the number of scores.
struct ScoreMatrix {
  std::span<const float> scores;
  int64_t tokens;
  int64_t experts;

  ScoreMatrix(std::span<const float> scores, int64_t experts);
};

/// Returns the expert with the highest score for each token: [tokens]; -1: it can choose none.
std::vector<int32_t> argmax_rows(const ScoreMatrix& s);

/// Returns the k best experts of every token, best first: [tokens, k], with -1 at the end where a
/// token can choose fewer. Throws UserError unless 1 <= k <= experts.
std::vector<int32_t> topk_rows(const ScoreMatrix& s, int64_t k);

/// Returns the n tokens with the best scores for an expert, best first: [n], or fewer where fewer
/// can choose it. Throws UserError unless 0 <= expert < experts and 0 <= n <= tokens.
std::vector<int32_t> topk_col(const ScoreMatrix& s, int64_t expert, int64_t n);

/// Returns the sum of every column over ascending tokens that can choose the expert: [experts]. NaN
/// is passed on.
std::vector<double> sum_cols(const ScoreMatrix& s);

/// Returns how often each of 0 .. bins - 1 occurs: [bins]. Negative values (no choice) are not
/// counted. Throws UserError for a value of `bins` or more.
std::vector<int64_t> histogram(std::span<const int32_t> values, int64_t bins);

/// Returns the token numbers by score, best first, equal scores in token order: [scores.size()].
std::vector<int32_t> order_by_score(std::span<const float> scores);

}  // namespace moe
