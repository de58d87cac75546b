// The computations of a gate: no warp has two tokens, so a row's bits do not depend on other rows.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr int kLogits = 8;  // experts per warp: their dot products share one read of x

template <class T>
__global__ void gate_logits_kernel(float* logits, const T* x, const float* w, const float* bias,
                                   int64_t tokens, int64_t experts, int64_t hidden) {
  constexpr int N = kSummed<T>;
  const int64_t groups = (experts + kLogits - 1) / kLogits;
  const int64_t t = warp_number() / groups, first = warp_number() % groups * kLogits;
  if (t >= tokens) return;  // the whole warp returns
  float sum[kLogits] = {};
  for (int64_t i = lane() * N; i < hidden; i += kWarp * N) {
    const auto value = load_columns<N>(x + t * hidden, i, hidden, 0);
    for (int e = 0; e < kLogits; ++e) {
      if (first + e >= experts) continue;
      const auto weight = load_columns<N>(w + (first + e) * hidden, i, hidden, 0);
      for (int j = 0; j < N; ++j) sum[e] += value.at[j] * weight.at[j];
    }
  }
  for (int e = 0; e < kLogits; ++e) {
    const float logit = warp_sum(sum[e]);
    if (lane() == 0 && first + e < experts)
      logits[t * experts + first + e] = bias ? logit + bias[first + e] : logit;
  }
}

__global__ void gate_scores_kernel(float* p, const float* logits, ScoreRule rule, int64_t tokens,
                                   int64_t experts) {
  const int64_t t = warp_number();
  if (t >= tokens) return;  // the whole warp returns
  const float* from = logits + t * experts;
  float* to = p + t * experts;
  if (rule == ScoreRule::kSigmoid) {
    for (int64_t e = lane(); e < experts; e += kWarp) to[e] = 1 / (1 + expf(-from[e]));
    return;
  }
  float top = -INFINITY, sum = 0;
  for (int64_t e = lane(); e < experts; e += kWarp) top = max_or_nan(top, from[e]);
  top = warp_max(top);
  for (int64_t e = lane(); e < experts; e += kWarp) sum += expf(from[e] - top);
  sum = warp_sum(sum);
  for (int64_t e = lane(); e < experts; e += kWarp) to[e] = expf(from[e] - top) / sum;
}

/// Returns the gradient of the score of expert e: the sum over the choices of e, in their order.
__device__ float score_grad(int64_t e, const float* dweight, const int32_t* expert, int64_t k,
                            WeightRule rule, float chosen, float dot) {
  float sum = 0;
  for (int64_t j = 0; j < k; ++j)
    if (expert[j] == e) sum += rule == WeightRule::kProb ? dweight[j] : (dweight[j] - dot) / chosen;
  return sum;
}

__global__ void gate_dlogits_kernel(float* dlogits, const float* dweight, const float* p,
                                    const int32_t* expert, WeightRule weight, ScoreRule score,
                                    int64_t tokens, int64_t experts, int64_t k) {
  const int64_t t = warp_number();
  if (t >= tokens) return;  // the whole warp returns
  const float* row = p + t * experts;
  const float* grad = dweight + t * k;
  const int32_t* choice = expert + t * k;
  if (weight == WeightRule::kOne) {
    for (int64_t e = lane(); e < experts; e += kWarp) dlogits[t * experts + e] = 0;
    return;
  }
  float chosen = 0, dot = 0;  // chosen: divisor of kRenorm; dot: sum of dweight * weight
  for (int64_t j = 0; j < k; ++j)
    if (choice[j] >= 0) chosen += row[choice[j]];
  for (int64_t j = 0; j < k; ++j)
    if (choice[j] >= 0) dot += grad[j] * row[choice[j]] / chosen;
  float mean = 0;  // sum of dp * p over experts; dp is 0 except for chosen experts
  for (int64_t e = lane(); e < experts && score == ScoreRule::kSoftmax; e += kWarp)
    mean += score_grad(e, grad, choice, k, weight, chosen, dot) * row[e];
  mean = warp_sum(mean);
  for (int64_t e = lane(); e < experts; e += kWarp) {
    const float dp = score_grad(e, grad, choice, k, weight, chosen, dot);
    dlogits[t * experts + e] =
        score == ScoreRule::kSoftmax ? row[e] * (dp - mean) : dp * row[e] * (1 - row[e]);
  }
}

template <class T>
void gate_logits(float* logits, const T* x, const float* w, const float* bias, int64_t tokens,
                 int64_t experts, int64_t hidden, Stream stream) {
  const int64_t warps = tokens * blocks_of(experts, kLogits);
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
  launch(gate_scores_kernel, blocks_of(tokens, kWarps), kThreads, stream, p, logits, rule, tokens,
         experts);
}

void gate_dlogits(float* dlogits, const float* dweight, const float* p, const int32_t* expert,
                  WeightRule weight, ScoreRule score, int64_t tokens, int64_t experts, int64_t k,
                  Stream stream) {
  launch(gate_dlogits_kernel, blocks_of(tokens, kWarps), kThreads, stream, dlogits, dweight, p,
         expert, weight, score, tokens, experts, k);
}

}  // namespace moe::kernels::cuda
