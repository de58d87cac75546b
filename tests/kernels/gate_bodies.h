// What cases of a gate's kernels compute, on any table of them: bodies for agree() (compare.h) and,
// in tests/cuda, for agree_on_device().
#pragma once

#include "tests/kernels/compare.h"

namespace moe::test {

struct GateShape {
  int64_t tokens, experts, hidden;
};
inline const std::vector<GateShape> kGates = {{1, 2, 8},   {5, 3, 17},   {4, 4, 128}, {19, 5, 100},
                                              {7, 64, 33}, {33, 16, 64}, {2, 256, 20}};

inline auto gate_scores(GateShape g, double range, kernels::ScoreRule rule) {
  return [=](const auto& k, auto zero) {
    using T = decltype(zero);
    const auto logits = random_values<T>(g.tokens * g.experts, 1, range);
    std::vector<T> p(logits.size());
    k.gate_scores(p.data(), logits.data(), rule, g.tokens, g.experts, nullptr);
    return p;
  };
}

/// Of two choices, of which some are missing.
inline auto gate_dlogits(GateShape g, kernels::WeightRule weight, kernels::ScoreRule score) {
  return [=](const auto& table, auto zero) {
    using T = decltype(zero);
    const int64_t k = 2;
    std::vector<int32_t> expert(g.tokens * k);
    for (int64_t t = 0; t < g.tokens; ++t) {
      expert[2 * t] = static_cast<int32_t>((t * 7) % g.experts);
      expert[2 * t + 1] = t % 3 ? static_cast<int32_t>((t * 7 + 1) % g.experts) : -1;
    }
    if (g.tokens > 4) expert[2 * 3] = expert[2 * 3 + 1] = -1;  // a token that no expert took
    const auto logits = random_values<T>(g.tokens * g.experts, 1, 3.0);
    const auto dweight = random_values<T>(g.tokens * k, 2);
    std::vector<T> p(logits.size()), dlogits(logits.size(), T(5));
    table.gate_scores(p.data(), logits.data(), score, g.tokens, g.experts, nullptr);
    table.gate_dlogits(dlogits.data(), dweight.data(), p.data(), expert.data(), weight, score,
                       g.tokens, g.experts, k, nullptr);
    return joined(p, dlogits);  // some dlogits cancel to 0: p gives the scale
  };
}

/// Balance loss and z-loss with their gradients, from scores that were made in place.
inline auto router_losses(Matrix shape, kernels::ScoreRule rule) {
  return [=](const auto& k, auto zero) {
    using T = decltype(zero);
    const auto [tokens, experts] = shape;
    auto logits = random_values<T>(tokens * experts, 1, 4), p = logits;
    auto load = random_values<T>(experts, 2, 50);
    for (T& l : load) l = std::abs(l);
    double balance = -1, z = -1;
    k.gate_scores(p.data(), p.data(), rule, tokens, experts, nullptr);
    k.balance_loss(&balance, p.data(), load.data(), rule, 0.01 / tokens, tokens, experts, nullptr);
    k.z_loss(&z, logits.data(), 0.1 / tokens, tokens, experts, nullptr);
    p.push_back(static_cast<T>(balance));
    p.push_back(static_cast<T>(z));
    return joined(p, logits);
  };
}

}  // namespace moe::test
