// Losses, each with its gradient in place: cross entropy, in three passes over each row while the
// row is in the cache, and the gate's losses, balance_loss and z_loss. Partial sums are float,
// their totals double.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/fast.h"
#include "kernels/cpu/fast_simd.h"

namespace moe::kernels::MOE_ISA {
namespace {

/// Returns the sum of exp(x - top), computed in blocks so that a large vocabulary does not lose
/// bits. With `keep_exp`, x becomes exp(x - top).
double sum_exp(float* x, float top, bool keep_exp, int64_t n) {
  constexpr int64_t kBlock = 4096;
  double sum = 0;
  for (int64_t first = 0; first < n; first += kBlock, x += kBlock)
    sum += sum_of(n - first < kBlock ? n - first : kBlock, [&](int64_t i, auto lanes) {
      const Vec e = keep(exp(load(x + i, lanes) - top), lanes, 0.0f);
      if (keep_exp) store(x + i, e, lanes);
      return e;
    });
  return sum;
}

void cross_entropy(double* loss, float* logits, const int32_t* target, double scale, bool gradient,
                   int64_t tokens, int64_t vocab, int64_t pitch, Stream) {
  double total = 0;
  for (int64_t t = 0; t < tokens; ++t, logits += pitch) {
    if (target[t] < 0) {
      if (gradient) std::fill_n(logits, pitch, 0.0f);
      continue;
    }
    const float top = max_of(vocab, [&](int64_t i, auto lanes) {
      return keep(load(logits + i, lanes), lanes, -__builtin_inff());
    });
    const double picked = logits[target[t]];
    const double sum = sum_exp(logits, top, gradient, vocab);
    total += std::log(sum) + (top - picked);
    if (!gradient) continue;
    const double at_target = scale * (logits[target[t]] / sum - 1);
    const float factor = static_cast<float>(scale / sum);
    each_vec(vocab, [&](int64_t i, auto lanes) {
      store(logits + i, load(logits + i, lanes) * factor, lanes);
    });
    logits[target[t]] = static_cast<float>(at_target);
    std::fill(logits + vocab, logits + pitch, 0.0f);
  }
  *loss = scale * total;
}

void balance_loss(double* loss, float* p, const float* expert_load, ScoreRule rule, double scale,
                  int64_t tokens, int64_t experts, Stream) {
  double total = 0;
  for (int64_t t = 0; t < tokens; ++t, p += experts) {
    double sum = 1;
    if (rule == ScoreRule::kSigmoid)
      sum = sum_of(experts, [&](int64_t i, auto lanes) { return load(p + i, lanes); });
    const double dot = sum_of(experts, [&](int64_t i, auto lanes) {
      return load(expert_load + i, lanes) * load(p + i, lanes);
    });
    total += dot / sum;
    const auto mean = static_cast<float>(dot / sum), factor = static_cast<float>(scale / sum);
    each_vec(experts, [&](int64_t i, auto lanes) {
      const Vec score = load(p + i, lanes);
      const Vec slope = rule == ScoreRule::kSigmoid ? score * (1.0f - score) : score;
      store(p + i, factor * (load(expert_load + i, lanes) - mean) * slope, lanes);
    });
  }
  *loss = scale * total;
}

void z_loss(double* loss, float* logits, double scale, int64_t tokens, int64_t experts, Stream) {
  double total = 0;
  for (int64_t t = 0; t < tokens; ++t, logits += experts) {
    const float top = max_of(experts, [&](int64_t i, auto lanes) {
      return keep(load(logits + i, lanes), lanes, -__builtin_inff());
    });
    const double sum = sum_exp(logits, top, true, experts);
    const double z = std::log(sum) + top;
    total += z * z;
    const auto factor = static_cast<float>(2 * scale * z / sum);
    each_vec(experts, [&](int64_t i, auto lanes) {
      store(logits + i, load(logits + i, lanes) * factor, lanes);
    });
  }
  *loss = scale * total;
}

}  // namespace

void set_loss(KernelTable<float>& table) noexcept {
  table.cross_entropy = cross_entropy;
  table.balance_loss = balance_loss;
  table.z_loss = z_loss;
}

}  // namespace moe::kernels::MOE_ISA
