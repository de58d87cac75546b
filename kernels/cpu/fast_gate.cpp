// The gate: logits whose bits do not depend on the number of rows, scores, and their gradient.
#include "kernels/cpu/fast.h"
#include "kernels/cpu/fast_simd.h"

namespace moe::kernels::MOE_ISA {
namespace {

constexpr int kExperts = 4;               // a tile has as many sums as a vector has SIMD lanes:
constexpr int kRows = kLanes / kExperts;  // kRows tokens x kExperts experts

struct TileRows {
  const float* x[kRows];
  const float* w[kExperts];
};

/// Returns in SIMD lane r * kExperts + e the dot product of x[r] and w[e]. Every logit is computed
/// here, in one order; at the edges of the matrix, gate_logits() repeats the last row.
MOE_INLINE Vec tile_dots(const TileRows& rows, int64_t hidden) {
  Vec sum[kLanes] = {};
  each_vec(hidden, [&](int64_t i, auto lanes) {
    Vec w[kExperts];
    for (int e = 0; e < kExperts; ++e) w[e] = load(rows.w[e] + i, lanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec x = load(rows.x[r] + i, lanes);
      for (int e = 0; e < kExperts; ++e) sum[r * kExperts + e] += x * w[e];
    }
  });
  return sums_of_lanes(sum);
}

int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

void gate_logits(float* logits, const float* x, const float* w, const float* bias, int64_t tokens,
                 int64_t experts, int64_t hidden, Stream) {
  for (int64_t t = 0; t < tokens; t += kRows) {
    TileRows rows;
    for (int r = 0; r < kRows; ++r) rows.x[r] = x + smaller(t + r, tokens - 1) * hidden;
    for (int64_t e = 0; e < experts; e += kExperts) {
      for (int i = 0; i < kExperts; ++i) rows.w[i] = w + smaller(e + i, experts - 1) * hidden;
      float dots[kLanes];
      store(dots, tile_dots(rows, hidden));
      for (int64_t r = 0; r < smaller(kRows, tokens - t); ++r)
        for (int64_t i = 0; i < smaller(kExperts, experts - e); ++i)
          logits[(t + r) * experts + e + i] = dots[r * kExperts + i] + (bias ? bias[e + i] : 0.0f);
    }
  }
}

void softmax_row(float* p, const float* logits, int64_t n) {
  const float top = max_of(n, [&](int64_t i, auto lanes) {
    return keep(load(logits + i, lanes), lanes, -__builtin_inff());
  });
  const float sum = sum_of(n, [&](int64_t i, auto lanes) {
    const Vec e = keep(exp(load(logits + i, lanes) - top), lanes, 0.0f);
    store(p + i, e, lanes);
    return e;
  });
  each_vec(n, [&](int64_t i, auto lanes) { store(p + i, load(p + i, lanes) / sum, lanes); });
}

void gate_scores(float* p, const float* logits, ScoreRule rule, int64_t tokens, int64_t experts,
                 Stream) {
  if (rule == ScoreRule::kSigmoid) {
    each_vec(tokens * experts, [&](int64_t i, auto lanes) {
      store(p + i, 1.0f / (1.0f + exp(-load(logits + i, lanes))), lanes);
    });
    return;
  }
  for (int64_t t = 0; t < tokens; ++t) softmax_row(p + t * experts, logits + t * experts, experts);
}

/// Adds the gradient that comes from a token's weights to dp[e], the gradient of its scores.
void add_score_grad(float* dp, const float* dweight, const float* p, const int32_t* expert,
                    WeightRule rule, int64_t k) {
  if (rule == WeightRule::kOne) return;
  float chosen = 1, mean = 0;  // kRenorm: weight = p / chosen, mean = sum of dweight * weight
  if (rule == WeightRule::kRenorm) {
    chosen = 0;
    float dot = 0;
    for (int64_t j = 0; j < k; ++j) {
      if (expert[j] < 0) continue;
      chosen += p[expert[j]];
      dot += dweight[j] * p[expert[j]];
    }
    mean = dot / chosen;
  }
  for (int64_t j = 0; j < k; ++j)
    if (expert[j] >= 0) dp[expert[j]] += (dweight[j] - mean) / chosen;
}

void gate_dlogits(float* dlogits, const float* dweight, const float* p, const int32_t* expert,
                  WeightRule weight, ScoreRule score, int64_t tokens, int64_t experts, int64_t k,
                  Stream) {
  for (int64_t t = 0; t < tokens; ++t) {
    float* d = dlogits + t * experts;  // first contains dp
    const float* pt = p + t * experts;
    each_vec(experts, [&](int64_t i, auto lanes) { store(d + i, Vec{}, lanes); });
    add_score_grad(d, dweight + t * k, pt, expert + t * k, weight, k);
    if (score == ScoreRule::kSigmoid) {
      each_vec(experts, [&](int64_t i, auto lanes) {
        const Vec pe = load(pt + i, lanes);
        store(d + i, load(d + i, lanes) * pe * (1.0f - pe), lanes);
      });
      continue;
    }
    const float dot = sum_of(
        experts, [&](int64_t i, auto lanes) { return load(d + i, lanes) * load(pt + i, lanes); });
    each_vec(experts, [&](int64_t i, auto lanes) {
      store(d + i, load(pt + i, lanes) * (load(d + i, lanes) - dot), lanes);
    });
  }
}

}  // namespace

void set_gate(KernelTable<float>& table) noexcept {
  table.gate_logits = gate_logits;
  table.gate_scores = gate_scores;
  table.gate_dlogits = gate_dlogits;
}

}  // namespace moe::kernels::MOE_ISA
