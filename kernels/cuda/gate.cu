// The computations of a gate. A row's bits depend neither on other rows nor on how many there are.
#include "kernels/cuda/functions.h"
#include "kernels/cuda/score_rows.h"

namespace moe::kernels::cuda {
namespace {

constexpr int kTokens = 4, kLogits = 8;  // of a warp: their products share reads of x and w
static_assert(kTokens * kLogits == kWarp);

/// A warp has kTokens tokens and kLogits experts, and at the end each lane one logit.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gate_logits_kernel(float* logits, const T* x, const float* w, const float* bias, int64_t tokens,
                       int64_t experts, int64_t hidden) {
  constexpr int N = kPack<T>;
  const int64_t groups = (experts + kLogits - 1) / kLogits;
  const int64_t first_token = warp_number() / groups * kTokens;
  const int64_t first_expert = warp_number() % groups * kLogits;
  if (first_token >= tokens) return;  // the whole warp returns
  float sum[kWarp] = {};
  for (int64_t i = lane() * N; i < hidden; i += kWarp * N) {
    Numbers<N> value[kTokens];
    for (int t = 0; t < kTokens; ++t)
      value[t] = first_token + t < tokens
                     ? load_columns<N>(x + (first_token + t) * hidden, i, hidden, 0)
                     : Numbers<N>{};
    for (int e = 0; e < kLogits; ++e) {
      if (first_expert + e >= experts) continue;
      const auto weight = load_columns<N>(w + (first_expert + e) * hidden, i, hidden, 0);
      for (int t = 0; t < kTokens; ++t)
        for (int j = 0; j < N; ++j) sum[t * kLogits + e] += value[t].at[j] * weight.at[j];
    }
  }
  // Lanes exchange halves of what they have until each has the sum over all lanes of one logit.
  for (int half = kWarp / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) {
      const bool upper = (lane() & half) != 0;
      const float given = upper ? sum[i] : sum[i + half], kept = upper ? sum[i + half] : sum[i];
      sum[i] = kept + __shfl_xor_sync(kAllLanes, given, half);
    }
  const int64_t token = first_token + lane() / kLogits, expert = first_expert + lane() % kLogits;
  if (token < tokens && expert < experts)
    logits[token * experts + expert] = bias ? sum[0] + bias[expert] : sum[0];
}

/// The lanes of a row, to = p; numbers that do not fit into registers stay in p.
template <class R>
__global__ void gate_scores_kernel(float* p, const float* logits, ScoreRule rule, int64_t tokens,
                                   int64_t experts) {
  const int64_t t = warp_number() * R::kRows + lane() / R::kLanes;
  const int64_t cols = t < tokens ? experts : 0;  // all lanes take part in sums
  const float* const from = logits + t * experts;
  float* const to = p + t * experts;
  float held[R::kEach > 0 ? R::kEach : 1];
  const auto number = [&](int64_t e, int i) -> float& { return R::kEach > 0 ? held[i] : to[e]; };
  R::columns(cols, [&](int64_t e, int i) { number(e, i) = from[e]; });
  score_row<R>(rule, cols, number);
  if (R::kEach > 0) R::columns(cols, [&](int64_t e, int i) { to[e] = held[i]; });
}

template <class R>
__global__ void gate_dlogits_kernel(float* dlogits, const float* dweight, const float* p,
                                    const int32_t* expert, WeightRule weight, ScoreRule score,
                                    int64_t tokens, int64_t experts, int64_t k) {
  const int64_t t = warp_number() * R::kRows + lane() / R::kLanes;
  const int64_t cols = t < tokens ? experts : 0, choices = t < tokens ? k : 0;
  const float* const row = p + t * experts;
  const float* const grad = dweight + t * k;
  const int32_t* const choice = expert + t * k;
  float* const to = dlogits + t * experts;
  float held[R::kEach > 0 ? R::kEach : 1];
  // The gradient of a score: the sum over its choices, in their order.
  const auto dp = [&](int64_t e, int i) -> float& { return R::kEach > 0 ? held[i] : to[e]; };
  R::columns(cols, [&](int64_t e, int i) { dp(e, i) = 0; });
  float chosen = 0, dot = 0;  // chosen: divisor of kRenorm; dot: sum of dweight * weight
  for (int64_t j = 0; j < choices && weight == WeightRule::kRenorm; ++j)
    if (choice[j] >= 0) chosen += row[choice[j]];
  for (int64_t j = 0; j < choices && weight == WeightRule::kRenorm; ++j)
    if (choice[j] >= 0) dot += grad[j] * row[choice[j]] / chosen;
  for (int64_t j = 0; j < choices && weight != WeightRule::kOne; ++j) {
    const float one = weight == WeightRule::kProb ? grad[j] : (grad[j] - dot) / chosen;
    R::columns(cols, [&](int64_t e, int i) {
      if (e == choice[j]) dp(e, i) += one;
    });
  }
  float mean = 0;  // sum of dp * p over experts
  R::columns(cols, [&](int64_t e, int i) { mean += dp(e, i) * row[e]; });
  mean = warp_sum(mean, R::kLanes);
  R::columns(cols, [&](int64_t e, int i) {
    to[e] = weight == WeightRule::kOne     ? 0
            : score == ScoreRule::kSoftmax ? row[e] * (dp(e, i) - mean)
                                           : dp(e, i) * row[e] * (1 - row[e]);
  });
}

template <class T>
void gate_logits(float* logits, const T* x, const float* w, const float* bias, int64_t tokens,
                 int64_t experts, int64_t hidden, Stream stream) {
  const int64_t warps = blocks_of(tokens, kTokens) * blocks_of(experts, kLogits);
  launch(gate_logits_kernel<T>, blocks_of(warps, kWarps), kThreads, stream, logits, x, w, bias,
         tokens, experts, hidden);
}

}  // namespace

template <class T>
void gate_kernels(KernelTable<T>& table) {
  table.gate_logits = gate_logits<T>;
}
template void gate_kernels(KernelTable<float>&);
template void gate_kernels(KernelTable<Bf16>&);

void gate_scores(float* p, const float* logits, ScoreRule rule, int64_t tokens, int64_t experts,
                 Stream stream) {
  in_rows(experts, [&]<class R>(R) {
    launch(gate_scores_kernel<R>, blocks_of(tokens, kWarps * R::kRows), kThreads, stream, p, logits,
           rule, tokens, experts);
  });
}

void gate_dlogits(float* dlogits, const float* dweight, const float* p, const int32_t* expert,
                  WeightRule weight, ScoreRule score, int64_t tokens, int64_t experts, int64_t k,
                  Stream stream) {
  in_rows(experts, [&]<class R>(R) {
    launch(gate_dlogits_kernel<R>, blocks_of(tokens, kWarps * R::kRows), kThreads, stream, dlogits,
           dweight, p, expert, weight, score, tokens, experts, k);
  });
}

}  // namespace moe::kernels::cuda
