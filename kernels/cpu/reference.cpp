// The reference: double, plain loops in the order of the formulas. The fast kernels are tested
// against it, so it is simple and shares only each_product() and AdamW's factors with them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/adamw.h"
#include "kernels/each_product.h"
#include "kernels/kernels.h"

namespace moe::kernels {
namespace {

constexpr double kEps = 1e-5;
constexpr double kSqrt2OverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;

double at_or_zero(const double* p, int64_t i) {
  return p ? p[i] : 0.0;
}

void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, double alpha,
          const double* a, int64_t lda, const double* b, int64_t ldb, double beta, double* c,
          int64_t ldc, Stream) {
  if (m == 0) return;  // an expert without rows: b is not read
  std::vector<double> op_b(static_cast<size_t>(k * n)), row(static_cast<size_t>(n));
  for (int64_t p = 0; p < k; ++p)
    for (int64_t j = 0; j < n; ++j) op_b[p * n + j] = transpose_b ? b[j * ldb + p] : b[p * ldb + j];
  for (int64_t i = 0; i < m; ++i) {
    std::fill(row.begin(), row.end(), 0.0);
    for (int64_t p = 0; p < k; ++p) {
      const double aip = transpose_a ? a[p * lda + i] : a[i * lda + p];
      for (int64_t j = 0; j < n; ++j) row[j] += aip * op_b[p * n + j];
    }
    for (int64_t j = 0; j < n; ++j) {
      double& out = c[i * ldc + j];
      // As in BLAS, c is not read if beta is 0.
      out = alpha * row[j] + (beta == 0 ? 0.0 : beta * out);
    }
  }
}

void fill_bias(double* y, const double* bias, const double* residual, int64_t rows, int64_t cols,
               Stream) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      y[r * cols + c] = at_or_zero(bias, c) + at_or_zero(residual, r * cols + c);
}

void bias_grad(double* db, const double* dy, const double* acc, int64_t rows, int64_t cols,
               Stream) {
  for (int64_t c = 0; c < cols; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += dy[r * cols + c];
    db[c] = at_or_zero(acc, c) + sum;
  }
}

void layernorm(double* y, double* mean, double* rstd, const double* x, const double* gamma,
               const double* beta, int64_t rows, int64_t cols, Stream) {
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < cols; ++c) sum += x[c];
    mean[r] = sum / cols;
    for (int64_t c = 0; c < cols; ++c) squares += (x[c] - mean[r]) * (x[c] - mean[r]);
    rstd[r] = 1 / std::sqrt(squares / cols + kEps);
    for (int64_t c = 0; c < cols; ++c) y[c] = (x[c] - mean[r]) * rstd[r] * gamma[c] + beta[c];
  }
}

void layernorm_dx(double* dx, const double* dy, const double* x, const double* mean,
                  const double* rstd, const double* gamma, const double* acc, int64_t rows,
                  int64_t cols, Stream) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = r * cols;
    double sum = 0, sum_xhat = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double dxhat = dy[row + c] * gamma[c];
      sum += dxhat;
      sum_xhat += dxhat * (x[row + c] - mean[r]) * rstd[r];
    }
    for (int64_t c = 0; c < cols; ++c) {
      const double xhat = (x[row + c] - mean[r]) * rstd[r];
      dx[row + c] = at_or_zero(acc, row + c) +
                    rstd[r] * (dy[row + c] * gamma[c] - sum / cols - xhat * sum_xhat / cols);
    }
  }
}

void layernorm_dw(double* dgamma, double* dbeta, const double* dy, const double* x,
                  const double* mean, const double* rstd, const double* acc_gamma,
                  const double* acc_beta, int64_t rows, int64_t cols, Stream) {
  for (int64_t c = 0; c < cols; ++c) {
    double sum_gamma = 0, sum_beta = 0;
    for (int64_t r = 0; r < rows; ++r) {
      sum_gamma += dy[r * cols + c] * (x[r * cols + c] - mean[r]) * rstd[r];
      sum_beta += dy[r * cols + c];
    }
    dgamma[c] = at_or_zero(acc_gamma, c) + sum_gamma;
    dbeta[c] = at_or_zero(acc_beta, c) + sum_beta;
  }
}

void rmsnorm(double* y, double* rstd, const double* x, const double* gamma, double eps,
             int64_t rows, int64_t cols, Stream) {
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    double squares = 0;
    for (int64_t c = 0; c < cols; ++c) squares += x[c] * x[c];
    rstd[r] = 1 / std::sqrt(squares / cols + eps);
    for (int64_t c = 0; c < cols; ++c) y[c] = x[c] * rstd[r] * gamma[c];
  }
}

void rmsnorm_dx(double* dx, const double* dy, const double* x, const double* rstd,
                const double* gamma, const double* acc, int64_t rows, int64_t cols, Stream) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = r * cols;
    double sum_xhat = 0;
    for (int64_t c = 0; c < cols; ++c) sum_xhat += dy[row + c] * gamma[c] * x[row + c] * rstd[r];
    for (int64_t c = 0; c < cols; ++c) {
      const double xhat = x[row + c] * rstd[r];
      dx[row + c] =
          at_or_zero(acc, row + c) + rstd[r] * (dy[row + c] * gamma[c] - xhat * sum_xhat / cols);
    }
  }
}

void rmsnorm_dw(double* dgamma, const double* dy, const double* x, const double* rstd,
                const double* acc, int64_t rows, int64_t cols, Stream) {
  for (int64_t c = 0; c < cols; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += dy[r * cols + c] * x[r * cols + c] * rstd[r];
    dgamma[c] = at_or_zero(acc, c) + sum;
  }
}

void gelu(double* y, const double* x, const double* bias, int64_t rows, int64_t cols, Stream) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double z = x[i] + at_or_zero(bias, i % cols);
    y[i] = 0.5 * z * (1 + std::tanh(kSqrt2OverPi * (z + kCubic * z * z * z)));
  }
}

void gelu_dx(double* dx, const double* dy, const double* x, const double* bias, int64_t rows,
             int64_t cols, Stream) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double z = x[i] + at_or_zero(bias, i % cols);
    const double t = std::tanh(kSqrt2OverPi * (z + kCubic * z * z * z));
    const double du = kSqrt2OverPi * (1 + 3 * kCubic * z * z);
    dx[i] = dy[i] * (0.5 * (1 + t) + 0.5 * z * (1 - t * t) * du);
  }
}

void silu_mul(double* y, const double* x, GatedForm form, int64_t rows, int64_t cols, Stream) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double gate = x[2 * i - i % cols], up = x[2 * i - i % cols + cols];
    const double g = gate > form.limit ? form.limit : gate;
    const double u = up > form.limit ? form.limit : up < -form.limit ? -form.limit : up;
    y[i] = g / (1 + std::exp(-form.alpha * g)) * (u + form.offset);
  }
}

void silu_mul_dx(double* dx, const double* dy, const double* x, GatedForm form, int64_t rows,
                 int64_t cols, Stream) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t at_gate = 2 * i - i % cols, at_up = at_gate + cols;
    const bool gate_passes = !(x[at_gate] > form.limit);
    const bool up_passes = !(std::abs(x[at_up]) > form.limit);
    const double g = gate_passes ? x[at_gate] : form.limit;
    const double u = up_passes ? x[at_up] : std::copysign(form.limit, x[at_up]);
    const double s = 1 / (1 + std::exp(-form.alpha * g));
    dx[at_gate] =
        gate_passes ? dy[i] * (u + form.offset) * (s + form.alpha * g * s * (1 - s)) : 0.0;
    dx[at_up] = up_passes ? dy[i] * g * s : 0.0;
  }
}

void embedding(double* x, const int32_t* ids, const double* wte, const double* wpe, int64_t tokens,
               int64_t seq, int64_t hidden, Stream) {
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < hidden; ++c)
      x[t * hidden + c] = wte[ids[t] * hidden + c] + wpe[t % seq * hidden + c];
}

void embedding_dwte(double* dwte, const int32_t* ids, const double* dx, const double* acc,
                    int64_t tokens, int64_t vocab, int64_t hidden, Stream) {
  for (int64_t i = 0; i < vocab * hidden; ++i) dwte[i] = at_or_zero(acc, i);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < hidden; ++c) dwte[ids[t] * hidden + c] += dx[t * hidden + c];
}

void embedding_dwpe(double* dwpe, const double* dx, const double* acc, int64_t tokens, int64_t seq,
                    int64_t hidden, Stream) {
  for (int64_t i = 0; i < seq * hidden; ++i) {
    double sum = 0;
    for (int64_t j = i; j < tokens * hidden; j += seq * hidden) sum += dx[j];
    dwpe[i] = at_or_zero(acc, i) + sum;
  }
}

// Fused attention calls the functions of the three separate ops: score, softmax, context.

/// Indices of the elements of one head's matrices.
struct Heads {
  explicit Heads(AttentionShape s) : shape(s), hidden(s.heads * s.head_dim) {}
  /// Index of element (i, c) of head h, sequence b, in block 0 (q), 1 (k) or 2 (v) of qkv.
  int64_t qkv(int64_t b, int64_t h, int64_t block, int64_t i, int64_t c) const {
    return (b * shape.seq + i) * 3 * hidden + block * hidden + h * shape.head_dim + c;
  }
  int64_t ctx(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return (b * shape.seq + i) * hidden + h * shape.head_dim + c;
  }
  int64_t score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return ((b * shape.heads + h) * shape.seq + i) * shape.seq + j;
  }
  template <class F>
  void each_pair(F f) const {  // calls f(b, h, i, j)
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t h = 0; h < shape.heads; ++h)
        for (int64_t i = 0; i < shape.seq; ++i)
          for (int64_t j = 0; j < shape.seq; ++j) f(b, h, i, j);
  }
  int64_t num_scores() const { return shape.batch * shape.heads * shape.seq * shape.seq; }

  AttentionShape shape;
  int64_t hidden;
};

double attention_scale(AttentionShape s) {
  return 1 / std::sqrt(static_cast<double>(s.head_dim));
}

void attn_score(double* score, const double* qkv, AttentionShape s, Stream) {
  const Heads at(s);
  at.each_pair([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t c = 0; c < s.head_dim; ++c)
      sum += qkv[at.qkv(b, h, 0, i, c)] * qkv[at.qkv(b, h, 1, j, c)];
    score[at.score(b, h, i, j)] = sum;
  });
}

/// prob = softmax of the first i + 1 scores of query i, 0 for the rest; if lse is not null, it gets
/// the log-sum-exp of each query.
void causal_softmax(double* prob, double* lse, const double* score, AttentionShape s) {
  for (int64_t row = 0; row < s.batch * s.heads * s.seq; ++row) {
    const int64_t count = row % s.seq + 1;
    const double* from = score + row * s.seq;
    double* to = prob + row * s.seq;
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < count; ++j) top = std::max(top, from[j] * attention_scale(s));
    for (int64_t j = 0; j < count; ++j) sum += std::exp(from[j] * attention_scale(s) - top);
    for (int64_t j = 0; j < s.seq; ++j)
      to[j] = j < count ? std::exp(from[j] * attention_scale(s) - top) / sum : 0.0;
    if (lse) lse[row] = top + std::log(sum);
  }
}

void attn_softmax(double* prob, const double* score, AttentionShape s, Stream) {
  causal_softmax(prob, nullptr, score, s);
}

void attn_context(double* ctx, const double* prob, const double* qkv, AttentionShape s, Stream) {
  const Heads at(s);
  std::fill_n(ctx, s.batch * s.seq * at.hidden, 0.0);
  at.each_pair([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    if (j > i) return;
    for (int64_t c = 0; c < s.head_dim; ++c)
      ctx[at.ctx(b, h, i, c)] += prob[at.score(b, h, i, j)] * qkv[at.qkv(b, h, 2, j, c)];
  });
}

void clear_block(double* dqkv, const Heads& at, int64_t block) {
  for (int64_t r = 0; r < at.shape.batch * at.shape.seq; ++r)
    std::fill_n(dqkv + (r * 3 + block) * at.hidden, at.hidden, 0.0);
}

void attn_context_dx(double* dprob, double* dqkv, const double* dctx, const double* prob,
                     const double* qkv, AttentionShape s, Stream) {
  const Heads at(s);
  clear_block(dqkv, at, 2);
  at.each_pair([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t c = 0; c < s.head_dim; ++c) {
      const double grad = dctx[at.ctx(b, h, i, c)];
      sum += grad * qkv[at.qkv(b, h, 2, j, c)];
      dqkv[at.qkv(b, h, 2, j, c)] += prob[at.score(b, h, i, j)] * grad;
    }
    dprob[at.score(b, h, i, j)] = sum;
  });
}

void attn_softmax_dx(double* dscore, const double* dprob, const double* prob, AttentionShape s,
                     Stream) {
  for (int64_t row = 0; row < s.batch * s.heads * s.seq; ++row) {
    const int64_t count = row % s.seq + 1, first = row * s.seq;
    double dot = 0;
    for (int64_t j = 0; j < count; ++j) dot += dprob[first + j] * prob[first + j];
    for (int64_t j = 0; j < s.seq; ++j)
      dscore[first + j] =
          j < count ? prob[first + j] * (dprob[first + j] - dot) * attention_scale(s) : 0.0;
  }
}

void attn_score_dx(double* dqkv, const double* dscore, const double* qkv, AttentionShape s,
                   Stream) {
  const Heads at(s);
  clear_block(dqkv, at, 0);
  clear_block(dqkv, at, 1);
  at.each_pair([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    const double grad = dscore[at.score(b, h, i, j)];
    for (int64_t c = 0; c < s.head_dim; ++c) {
      dqkv[at.qkv(b, h, 0, i, c)] += grad * qkv[at.qkv(b, h, 1, j, c)];
      dqkv[at.qkv(b, h, 1, j, c)] += grad * qkv[at.qkv(b, h, 0, i, c)];
    }
  });
}

void attention(double* ctx, double* lse, const double* qkv, AttentionShape s, void*, Stream) {
  std::vector<double> prob(static_cast<size_t>(Heads(s).num_scores()));
  attn_score(prob.data(), qkv, s, nullptr);
  causal_softmax(prob.data(), lse, prob.data(), s);
  attn_context(ctx, prob.data(), qkv, s, nullptr);
}

void attention_dx(double* dqkv, const double* dctx, const double*, const double* qkv, const double*,
                  AttentionShape s, void*, Stream) {
  std::vector<double> prob(static_cast<size_t>(Heads(s).num_scores())), dprob = prob;
  attn_score(prob.data(), qkv, s, nullptr);
  causal_softmax(prob.data(), nullptr, prob.data(), s);
  attn_context_dx(dprob.data(), dqkv, dctx, prob.data(), qkv, s, nullptr);
  attn_softmax_dx(dprob.data(), dprob.data(), prob.data(), s, nullptr);
  attn_score_dx(dqkv, dprob.data(), qkv, s, nullptr);
}

int64_t attention_work_bytes(AttentionShape) {
  return 0;
}

void gate_logits(double* logits, const double* x, const double* w, int64_t tokens, int64_t experts,
                 int64_t hidden, Stream) {
  gemm(false, true, tokens, experts, hidden, 1, x, hidden, w, hidden, 0, logits, experts, nullptr);
}

void gate_scores(double* p, const double* logits, ScoreRule rule, int64_t tokens, int64_t experts,
                 Stream) {
  for (int64_t t = 0; t < tokens; ++t, p += experts, logits += experts) {
    if (rule == ScoreRule::kSigmoid) {
      for (int64_t e = 0; e < experts; ++e) p[e] = 1 / (1 + std::exp(-logits[e]));
      continue;
    }
    const double top = *std::max_element(logits, logits + experts);
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += std::exp(logits[e] - top);
    for (int64_t e = 0; e < experts; ++e) p[e] = std::exp(logits[e] - top) / sum;
  }
}

/// Computes dp[e], the gradient of one token's scores, from the gradient of its weights.
void score_grad(double* dp, const double* dweight, const double* p, const int32_t* expert,
                WeightRule rule, int64_t experts, int64_t k) {
  std::fill_n(dp, experts, 0.0);
  if (rule == WeightRule::kOne) return;
  double chosen = 0, dot = 0;  // chosen: divisor of kRenorm; dot: sum of dweight * weight
  for (int64_t j = 0; j < k; ++j)
    if (expert[j] >= 0) chosen += p[expert[j]];
  for (int64_t j = 0; j < k; ++j)
    if (expert[j] >= 0) dot += dweight[j] * p[expert[j]] / chosen;
  for (int64_t j = 0; j < k; ++j)
    if (expert[j] >= 0)
      dp[expert[j]] += rule == WeightRule::kProb ? dweight[j] : (dweight[j] - dot) / chosen;
}

void gate_dlogits(double* dlogits, const double* dweight, const double* p, const int32_t* expert,
                  WeightRule weight, ScoreRule score, int64_t tokens, int64_t experts, int64_t k,
                  Stream) {
  std::vector<double> dp(static_cast<size_t>(experts));
  for (int64_t t = 0; t < tokens; ++t) {
    const double* pt = p + t * experts;
    score_grad(dp.data(), dweight + t * k, pt, expert + t * k, weight, experts, k);
    double dot = 0;
    for (int64_t e = 0; e < experts; ++e) dot += dp[e] * pt[e];
    for (int64_t e = 0; e < experts; ++e)
      dlogits[t * experts + e] =
          score == ScoreRule::kSoftmax ? pt[e] * (dp[e] - dot) : dp[e] * pt[e] * (1 - pt[e]);
  }
}

void dispatch(double* out, const double* x, const int32_t* slot_choice, int64_t slots, int64_t k,
              int64_t hidden, Stream) {
  for (int64_t s = 0; s < slots; ++s)
    for (int64_t c = 0; c < hidden; ++c)
      out[s * hidden + c] = slot_choice[s] < 0 ? 0.0 : x[slot_choice[s] / k * hidden + c];
}

void dispatch_dx(double* dx, const double* dout, const int32_t* choice_slot, const double* acc,
                 int64_t tokens, int64_t k, int64_t hidden, Stream) {
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < hidden; ++c) {
      double sum = at_or_zero(acc, t * hidden + c);
      for (int64_t j = 0; j < k; ++j)
        if (choice_slot[t * k + j] >= 0) sum += dout[choice_slot[t * k + j] * hidden + c];
      dx[t * hidden + c] = sum;
    }
}

void combine(double* y, const double* in, const double* weight, const int32_t* choice_slot,
             const double* residual, int64_t tokens, int64_t k, int64_t hidden, Stream) {
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < hidden; ++c) {
      double sum = at_or_zero(residual, t * hidden + c);
      for (int64_t j = 0; j < k; ++j)
        if (choice_slot[t * k + j] >= 0)
          sum += weight[t * k + j] * in[choice_slot[t * k + j] * hidden + c];
      y[t * hidden + c] = sum;
    }
}

void combine_dx(double* din, const double* dy, const double* weight, const int32_t* slot_choice,
                int64_t slots, int64_t k, int64_t hidden, Stream) {
  for (int64_t s = 0; s < slots; ++s)
    for (int64_t c = 0; c < hidden; ++c) {
      const int32_t choice = slot_choice[s];
      din[s * hidden + c] = choice < 0 ? 0.0 : weight[choice] * dy[choice / k * hidden + c];
    }
}

void combine_dweight(double* dweight, const double* dy, const double* in,
                     const int32_t* choice_slot, int64_t tokens, int64_t k, int64_t hidden,
                     Stream) {
  for (int64_t choice = 0; choice < tokens * k; ++choice) {
    double sum = 0;
    for (int64_t c = 0; c < hidden && choice_slot[choice] >= 0; ++c)
      sum += dy[choice / k * hidden + c] * in[choice_slot[choice] * hidden + c];
    dweight[choice] = sum;
  }
}

void cross_entropy(double* loss, double* logits, const int32_t* target, double scale, bool gradient,
                   int64_t tokens, int64_t vocab, Stream) {
  *loss = 0;
  for (int64_t t = 0; t < tokens; ++t, logits += vocab) {
    const double top = *std::max_element(logits, logits + vocab);
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logits[v] - top);
    *loss += scale * (std::log(sum) + (top - logits[target[t]]));
    for (int64_t v = 0; v < vocab && gradient; ++v)
      logits[v] = scale * (std::exp(logits[v] - top) / sum - (v == target[t] ? 1 : 0));
  }
}

void balance_loss(double* loss, double* p, const double* load, ScoreRule rule, double scale,
                  int64_t tokens, int64_t experts, Stream) {
  *loss = 0;
  for (int64_t t = 0; t < tokens; ++t, p += experts) {
    double sum = 0, mean = 0;  // sum: of the scores; mean: of load[e], weighted by the scores
    for (int64_t e = 0; e < experts; ++e) sum += p[e];
    if (rule == ScoreRule::kSoftmax) sum = 1;
    for (int64_t e = 0; e < experts; ++e) mean += load[e] * p[e] / sum;
    *loss += scale * mean;
    for (int64_t e = 0; e < experts; ++e)
      p[e] =
          scale * (load[e] - mean) * (rule == ScoreRule::kSoftmax ? p[e] : p[e] * (1 - p[e]) / sum);
  }
}

void z_loss(double* loss, double* logits, double scale, int64_t tokens, int64_t experts, Stream) {
  *loss = 0;
  for (int64_t t = 0; t < tokens; ++t, logits += experts) {
    const double top = *std::max_element(logits, logits + experts);
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += std::exp(logits[e] - top);
    const double z = top + std::log(sum);
    *loss += scale * z * z;
    for (int64_t e = 0; e < experts; ++e)
      logits[e] = 2 * scale * z * std::exp(logits[e] - top) / sum;
  }
}

void adamw(double* w, double* m, double* v, const double* g, const AdamwRates& a,
           const int64_t* step, int64_t n, Stream) {
  const AdamwFactors f = adamw_factors(a, *step + 1);
  for (int64_t i = 0; i < n; ++i) {
    m[i] = a.beta1 * m[i] + (1 - a.beta1) * g[i];
    v[i] = a.beta2 * v[i] + (1 - a.beta2) * g[i] * g[i];
    w[i] = f.keep * w[i] - f.rate * m[i] / (f.root * std::sqrt(v[i]) + a.eps);
  }
}

void sgd(double* w, double* v, const double* g, double lr, double momentum, int64_t n, Stream) {
  for (int64_t i = 0; i < n; ++i) {
    v[i] = momentum * v[i] + g[i];
    w[i] -= lr * v[i];
  }
}

void add(double* y, const double* a, const double* b, int64_t n, Stream) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void sum_n(double* y, const double* const* in, int64_t count, int64_t n, Stream) {
  for (int64_t i = 0; i < n; ++i) {
    double sum = in[0][i];
    for (int64_t j = 1; j < count; ++j) sum += in[j][i];
    y[i] = sum;
  }
}

void round(double* y, const double* x, int64_t n, Stream) {
  std::copy_n(x, n, y);
}

void copy_2d(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width,
             int64_t rows, Stream) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(static_cast<char*>(to) + r * to_pitch,
                static_cast<const char*>(from) + r * from_pitch, static_cast<size_t>(width));
}

void clear(void* to, int64_t bytes, Stream) {
  std::memset(to, 0, static_cast<size_t>(bytes));
}

int64_t first_nonfinite(const double* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (!std::isfinite(x[i])) return i;
  return -1;
}

}  // namespace

const KernelTable<double>& reference_table() {
  static constexpr KernelTable<double> table = {
      .name = "reference",
      .gemm = gemm,
      .gemm_many = each_product<double, gemm, fill_bias, gelu, gelu_dx>,
      .bias_grad = bias_grad,
      .layernorm = layernorm,
      .layernorm_dx = layernorm_dx,
      .layernorm_dw = layernorm_dw,
      .rmsnorm = rmsnorm,
      .rmsnorm_dx = rmsnorm_dx,
      .rmsnorm_dw = rmsnorm_dw,
      .gelu = gelu,
      .gelu_dx = gelu_dx,
      .silu_mul = silu_mul,
      .silu_mul_dx = silu_mul_dx,
      .embedding = embedding,
      .embedding_dwte = embedding_dwte,
      .embedding_dwpe = embedding_dwpe,
      .attention = attention,
      .attention_dx = attention_dx,
      .attention_work_bytes = attention_work_bytes,
      .attn_score = attn_score,
      .attn_softmax = attn_softmax,
      .attn_context = attn_context,
      .attn_context_dx = attn_context_dx,
      .attn_softmax_dx = attn_softmax_dx,
      .attn_score_dx = attn_score_dx,
      .gate_logits = gate_logits,
      .gate_scores = gate_scores,
      .gate_dlogits = gate_dlogits,
      .dispatch = dispatch,
      .dispatch_dx = dispatch_dx,
      .combine = combine,
      .combine_dx = combine_dx,
      .combine_dweight = combine_dweight,
      .cross_entropy = cross_entropy,
      .balance_loss = balance_loss,
      .z_loss = z_loss,
      .sgd = sgd,
      .adamw = adamw,
      .add = add,
      .sum_n = sum_n,
      .round = round,
      .copy_2d = copy_2d,
      .clear = clear,
      .first_nonfinite = first_nonfinite,
  };
  return table;
}

}  // namespace moe::kernels
