// Scores that follow a law: the logit of an expert is the logarithm of its popularity plus Gumbel
// noise, so the k best experts of a token are distributed as the choices of a workload with this
// popularity (workload.h). Invariant: a score is a function of the law and the numbers of token and
// expert only. Popularity itself is in popularity.h, gates that read scores are in gate.h.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/gate_rules.h"

namespace moe {

/// The scores of one rank's tokens in one step and layer.
struct ScoreLaw {
  std::vector<float> popularity;  // [experts], sums to 1
  int64_t tokens = 0;             // the rank's first `tokens` tokens choose experts, the others not
  uint32_t key = 0;               // of the random numbers

  /// Writes the scores [tokens, experts] of `count` tokens from number `first` on, after the score
  /// rule. Under kSigmoid the logit of an expert of mean popularity has a mean near 0.
  void write(kernels::ScoreRule rule, int64_t first, int64_t count, float* scores) const;
  /// Returns the k best experts of these tokens after kSoftmax, best first: [count, k]. They are
  /// those of topk_rows() (primitives.h) on the scores, most of which are not computed. Requires:
  /// 1 <= k <= number of experts.
  std::vector<int32_t> best(int64_t k, int64_t first, int64_t count) const;
};

/// Returns the law under which all experts are equally popular.
ScoreLaw even_scores(int64_t experts, int64_t tokens, uint32_t key);

}  // namespace moe
