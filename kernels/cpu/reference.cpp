// The reference: double, plain loops in the order of the formulas. The fast kernels are tested
// against it, so it is simple and shares with them only each_product(), AdamW's factors and the
// formulas of maps.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
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

void silu_mul(double* y, const double* x, const double* weight, GatedForm form, int64_t rows,
              int64_t cols, Stream) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double gate = x[2 * i - i % cols], up = x[2 * i - i % cols + cols];
    const double g = gate > form.limit ? form.limit : gate;
    const double u = up > form.limit ? form.limit : up < -form.limit ? -form.limit : up;
    const double w = weight == nullptr ? 1 : weight[i / cols];
    y[i] = w * (g / (1 + std::exp(-form.alpha * g)) * (u + form.offset));
  }
}

void silu_mul_dx(double* dx, double* dweight, const double* dy, const double* x,
                 const double* weight, GatedForm form, int64_t rows, int64_t cols, Stream) {
  if (weight != nullptr) std::fill_n(dweight, rows, 0.0);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t at_gate = 2 * i - i % cols, at_up = at_gate + cols;
    const bool gate_passes = !(x[at_gate] > form.limit);
    const bool up_passes = !(std::abs(x[at_up]) > form.limit);
    const double g = gate_passes ? x[at_gate] : form.limit;
    const double u = up_passes ? x[at_up] : std::copysign(form.limit, x[at_up]);
    const double s = 1 / (1 + std::exp(-form.alpha * g));
    const double d = weight == nullptr ? dy[i] : weight[i / cols] * dy[i];
    dx[at_gate] = gate_passes ? d * (u + form.offset) * (s + form.alpha * g * s * (1 - s)) : 0.0;
    dx[at_up] = up_passes ? d * g * s : 0.0;
    if (weight != nullptr) dweight[i / cols] += dy[i] * (g * s * (u + form.offset));
  }
}

void map(double* y, const double* x, Map map, double factor, const double* acc, int64_t n, Stream) {
  for (int64_t i = 0; i < n; ++i) y[i] = at_or_zero(acc, i) + map_of(map, x[i], factor);
}

void map_dx(double* dx, const double* dy, const double* y, Map map, const double* acc, int64_t n,
            Stream) {
  for (int64_t i = 0; i < n; ++i) dx[i] = at_or_zero(acc, i) + map_dx_of(map, dy[i], y[i]);
}

void mul(double* y, const double* a, const double* b, const double* acc, int64_t rows, int64_t cols,
         bool by_row, Stream) {
  for (int64_t i = 0; i < rows * cols; ++i)
    y[i] = at_or_zero(acc, i) + a[i] * b[by_row ? i / cols : i];
}

void row_dot(double* y, const double* a, const double* b, int64_t rows, int64_t cols, Stream) {
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = r * cols; i < (r + 1) * cols; ++i) sum += a[i] * b[i];
    y[r] = sum;
  }
}

void split_heads(double* first, double* second, const double* x, HeadColumns columns, int64_t rows,
                 Stream) {
  for (int64_t r = 0; r < rows; ++r, second += columns.row_of_second()) {
    std::fill_n(second, columns.row_of_second(), 0.0);
    for (int64_t h = 0; h < columns.heads; ++h) {
      first = std::copy_n(x, columns.first, first);
      x += columns.first;
      double* const to = columns.shared ? second : second + h * columns.second;
      for (int64_t c = 0; c < columns.second; ++c) to[c] += *x++;
    }
  }
}

void join_heads(double* x, const double* first, const double* second, HeadColumns columns,
                int64_t rows, Stream) {
  for (int64_t r = 0; r < rows; ++r, second += columns.row_of_second())
    for (int64_t h = 0; h < columns.heads; ++h, first += columns.first) {
      x = std::copy_n(first, columns.first, x);
      x = std::copy_n(columns.shared ? second : second + h * columns.second, columns.second, x);
    }
}

void rope_angles(double* angles, const RopeFrequencies& f, int64_t seq, Stream) {
  for (int64_t p = 0; p < seq; ++p, angles += 2 * f.pairs)
    for (int64_t j = 0; j < f.pairs; ++j) {
      const float angle = static_cast<float>(p) * f.at[j];
      angles[j] = std::cos(angle) * f.scale;
      angles[f.pairs + j] = std::sin(angle) * f.scale;
    }
}

void rope(double* y, const double* x, const double* angles, const RopeShape& s, Stream) {
  if (y != x) std::copy_n(x, s.tokens * s.heads * s.head_dim, y);
  for (int64_t h = 0; h < s.tokens * s.heads; ++h)
    for (int64_t j = 0; j < s.pairs; ++j) {
      const double* cosine = angles + h / s.heads % s.seq * 2 * s.pairs + j;
      const double c = cosine[0], si = s.inverse ? -cosine[s.pairs] : cosine[s.pairs];
      const int64_t at = h * s.head_dim + s.first + (s.interleaved ? 2 * j : j);
      const int64_t next = at + (s.interleaved ? 1 : s.pairs);
      const double a = x[at], b = x[next];
      y[at] = a * c - b * si;
      y[next] = b * c + a * si;
    }
}

void embedding(double* x, const int32_t* ids, const double* wte, const double* wpe, int64_t tokens,
               int64_t seq, int64_t hidden, Stream) {
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < hidden; ++c)
      x[t * hidden + c] =
          (ids[t] < 0 ? 0 : wte[ids[t] * hidden + c]) + at_or_zero(wpe, t % seq * hidden + c);
}

void embedding_dwte(double* dwte, const int32_t* ids, const double* dx, const double* acc,
                    int64_t tokens, int64_t vocab, int64_t hidden, Stream) {
  for (int64_t i = 0; i < vocab * hidden; ++i) dwte[i] = at_or_zero(acc, i);
  for (int64_t t = 0; t < tokens; ++t) {
    if (ids[t] < 0) continue;
    for (int64_t c = 0; c < hidden; ++c) dwte[ids[t] * hidden + c] += dx[t * hidden + c];
  }
}

void embedding_dwpe(double* dwpe, const double* dx, const double* acc, int64_t tokens, int64_t seq,
                    int64_t hidden, Stream) {
  for (int64_t i = 0; i < seq * hidden; ++i) {
    double sum = 0;
    for (int64_t j = i; j < tokens * hidden; j += seq * hidden) sum += dx[j];
    dwpe[i] = at_or_zero(acc, i) + sum;
  }
}

// Fused attention calls the functions of the separate ops: score, softmax, context. The ops that
// store their scores call them with a qkv.

/// Indices of the elements of one head's matrices.
struct Heads {
  explicit Heads(AttentionShape s) : shape(s) {}
  int64_t q(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return (b * shape.queries() + i) * shape.q_pitch + h * shape.head_dim + c;
  }
  int64_t k(int64_t b, int64_t h, int64_t j, int64_t c) const {
    return (b * shape.keys() + j) * shape.k_pitch + kv_head(h) * shape.head_dim + c;
  }
  int64_t v(int64_t b, int64_t h, int64_t j, int64_t c) const {
    return (b * shape.keys() + j) * shape.v_pitch + kv_head(h) * shape.value_dim + c;
  }
  int64_t ctx(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return ((b * shape.queries() + i) * shape.heads + h) * shape.value_dim + c;
  }
  int64_t score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return ((b * shape.heads + h) * shape.queries() + i) * shape.keys() + j;
  }
  template <class F>
  void each_pair(F f) const {  // calls f(b, h, i, j)
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t h = 0; h < shape.heads; ++h)
        for (int64_t i = 0; i < shape.queries(); ++i)
          for (int64_t j = 0; j < shape.keys(); ++j) f(b, h, i, j);
  }
  int64_t kv_head(int64_t h) const { return h / (shape.heads / shape.kv_heads); }
  int64_t num_scores() const { return shape.batch * shape.heads * shape.queries() * shape.keys(); }
  /// Query i sees the keys from first_key() to last_key().
  int64_t last_key(int64_t i) const { return std::min(shape.first + i, shape.keys() - 1); }
  int64_t first_key(int64_t i) const {
    return shape.window == 0 ? 0 : std::max<int64_t>(0, shape.first + i - shape.window + 1);
  }
  double scale() const {
    return shape.scale != 0 ? shape.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim));
  }

  AttentionShape shape;
};

void scores(double* score, AttentionIn<double> in, AttentionShape s) {
  const Heads at(s);
  at.each_pair([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t c = 0; c < s.head_dim; ++c) sum += in.q[at.q(b, h, i, c)] * in.k[at.k(b, h, j, c)];
    score[at.score(b, h, i, j)] = sum;
  });
}

/// prob = softmax of the scores that query i sees, and the sink's if there is one; 0 for the rest.
/// If lse is not null, it gets the log-sum-exp of each query.
void causal_softmax(double* prob, double* lse, const double* score, const double* sinks,
                    AttentionShape s) {
  const Heads at(s);
  const double scale = at.scale(), none = -std::numeric_limits<double>::infinity();
  for (int64_t row = 0; row < s.batch * s.heads * s.queries(); ++row) {
    const int64_t query = row % s.queries();
    const int64_t first = at.first_key(query), count = at.last_key(query) + 1;
    const double sink = sinks ? sinks[row / s.queries() % s.heads] : none;
    const double* from = score + row * s.keys();
    double* to = prob + row * s.keys();
    double top = sink;
    for (int64_t j = first; j < count; ++j) top = std::max(top, from[j] * scale);
    double sum = std::exp(sink - top);
    for (int64_t j = first; j < count; ++j) sum += std::exp(from[j] * scale - top);
    for (int64_t j = 0; j < s.keys(); ++j)
      to[j] = j >= first && j < count ? std::exp(from[j] * scale - top) / sum : 0.0;
    if (lse) lse[row] = top + std::log(sum);
  }
}

void context(double* ctx, const double* prob, const double* v, AttentionShape s) {
  const Heads at(s);
  std::fill_n(ctx, s.batch * s.queries() * s.heads * s.value_dim, 0.0);
  at.each_pair([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    if (j > at.last_key(i) || j < at.first_key(i)) return;
    for (int64_t c = 0; c < s.value_dim; ++c)
      ctx[at.ctx(b, h, i, c)] += prob[at.score(b, h, i, j)] * v[at.v(b, h, j, c)];
  });
}

void clear_rows(double* to, int64_t cols, int64_t pitch, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) std::fill_n(to + r * pitch, cols, 0.0);
}

void context_dx(double* dprob, double* dv, const double* dctx, const double* prob, const double* v,
                AttentionShape s) {
  const Heads at(s);
  if (!s.add) clear_rows(dv, s.kv_heads * s.value_dim, s.v_pitch, s.batch * s.keys());
  at.each_pair([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t c = 0; c < s.value_dim; ++c) {
      const double grad = dctx[at.ctx(b, h, i, c)];
      sum += grad * v[at.v(b, h, j, c)];
      dv[at.v(b, h, j, c)] += prob[at.score(b, h, i, j)] * grad;
    }
    dprob[at.score(b, h, i, j)] = sum;
  });
}

/// dots: for each query the sum of probabilities times their gradients; null: it is made here.
void softmax_dx(double* dscore, const double* dprob, const double* prob, AttentionShape s,
                const double* dots = nullptr) {
  const Heads at(s);
  for (int64_t row = 0; row < s.batch * s.heads * s.queries(); ++row) {
    const int64_t query = row % s.queries();
    const int64_t first = at.first_key(query), count = at.last_key(query) + 1;
    const double *p = prob + row * s.keys(), *dp = dprob + row * s.keys();
    double dot = dots ? dots[row] : 0;
    for (int64_t j = first; !dots && j < count; ++j) dot += dp[j] * p[j];
    for (int64_t j = 0; j < s.keys(); ++j)
      dscore[row * s.keys() + j] =
          j >= first && j < count ? p[j] * (dp[j] - dot) * at.scale() : 0.0;
  }
}

void scores_dx(double* dq, double* dk, const double* dscore, AttentionIn<double> in,
               AttentionShape s) {
  const Heads at(s);
  clear_rows(dq, s.heads * s.head_dim, s.q_pitch, s.batch * s.queries());
  if (!s.add) clear_rows(dk, s.kv_heads * s.head_dim, s.k_pitch, s.batch * s.keys());
  at.each_pair([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    const double grad = dscore[at.score(b, h, i, j)];
    for (int64_t c = 0; c < s.head_dim; ++c) {
      dq[at.q(b, h, i, c)] += grad * in.k[at.k(b, h, j, c)];
      dk[at.k(b, h, j, c)] += grad * in.q[at.q(b, h, i, c)];
    }
  });
}

void attention(double* ctx, double* lse, AttentionIn<double> in, AttentionShape s, void*, Stream) {
  std::vector<double> prob(static_cast<size_t>(Heads(s).num_scores()));
  scores(prob.data(), in, s);
  causal_softmax(prob.data(), lse, prob.data(), in.sinks, s);
  context(ctx, prob.data(), in.v, s);
}

/// prob = exp(score - lse) where query i sees key j; 0 for the rest.
void probabilities(double* prob, const double* score, const double* lse, AttentionShape s) {
  const Heads at(s);
  at.each_pair([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t n = at.score(b, h, i, j);
    const bool seen = j >= at.first_key(i) && j <= at.last_key(i);
    const double log_sum = lse[(b * s.heads + h) * s.queries() + i];
    prob[n] = seen ? std::exp(score[n] * at.scale() - log_sum) : 0.0;
  });
}

/// Keys and queries may be some of a sequence's, so sums over all keys come from ctx and lse.
void attention_dx(AttentionOut<double> out, const double* dctx, const double* ctx,
                  AttentionIn<double> in, const double* lse, AttentionShape s, void*, Stream) {
  const Heads at(s);
  std::vector<double> prob(static_cast<size_t>(at.num_scores())), dprob = prob, dots;
  scores(prob.data(), in, s);
  probabilities(prob.data(), prob.data(), lse, s);
  context_dx(dprob.data(), out.dv, dctx, prob.data(), in.v, s);
  for (int64_t row = 0; row < s.batch * s.heads * s.queries(); ++row) {
    const int64_t i = row % s.queries(), h = row / s.queries() % s.heads;
    const int64_t from = at.ctx(row / s.queries() / s.heads, h, i, 0);
    dots.push_back(std::inner_product(dctx + from, dctx + from + s.value_dim, ctx + from, 0.0));
  }
  softmax_dx(dprob.data(), dprob.data(), prob.data(), s, dots.data());
  scores_dx(out.dq, out.dk, dprob.data(), in, s);
}

void attention_dsinks(double* dsinks, const double* lse, const double* dctx, const double* ctx,
                      const double* sinks, const double* acc, AttentionShape s, Stream) {
  const Heads at(s);
  for (int64_t h = 0; h < s.heads; ++h) {
    double sum = 0;
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t i = 0; i < s.seq; ++i) {
        double dot = 0;
        for (int64_t c = 0; c < s.value_dim; ++c)
          dot += dctx[at.ctx(b, h, i, c)] * ctx[at.ctx(b, h, i, c)];
        sum += std::exp(sinks[h] - lse[(b * s.heads + h) * s.seq + i]) * dot;
      }
    dsinks[h] = at_or_zero(acc, h) - sum;
  }
}

int64_t attention_work_bytes(AttentionShape) {
  return 0;
}

void attn_score(double* score, const double* qkv, AttentionShape s, Stream) {
  scores(score, in_qkv(qkv, s), s);
}

void attn_softmax(double* prob, const double* score, AttentionShape s, Stream) {
  causal_softmax(prob, nullptr, score, nullptr, s);
}

void attn_context(double* ctx, const double* prob, const double* qkv, AttentionShape s, Stream) {
  context(ctx, prob, in_qkv(qkv, s).v, s);
}

void attn_context_dx(double* dprob, double* dqkv, const double* dctx, const double* prob,
                     const double* qkv, AttentionShape s, Stream) {
  context_dx(dprob, out_qkv(dqkv, s).dv, dctx, prob, in_qkv(qkv, s).v, s);
}

void attn_softmax_dx(double* dscore, const double* dprob, const double* prob, AttentionShape s,
                     Stream) {
  softmax_dx(dscore, dprob, prob, s);
}

void attn_score_dx(double* dqkv, const double* dscore, const double* qkv, AttentionShape s,
                   Stream) {
  const auto out = out_qkv(dqkv, s);
  scores_dx(out.dq, out.dk, dscore, in_qkv(qkv, s), s);
}

void gate_logits(double* logits, const double* x, const double* w, const double* bias,
                 int64_t tokens, int64_t experts, int64_t hidden, Stream) {
  gemm(false, true, tokens, experts, hidden, 1, x, hidden, w, hidden, 0, logits, experts, nullptr);
  for (int64_t i = 0; i < tokens * experts; ++i) logits[i] += at_or_zero(bias, i % experts);
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

void gather(double* to, const double* from, const int32_t* at, int64_t n, Stream) {
  for (int64_t i = 0; i < n; ++i) to[i] = at[i] < 0 ? 0.0 : from[at[i]];
}

void cross_entropy(double* loss, double* logits, const int32_t* target, double scale, bool gradient,
                   int64_t tokens, int64_t vocab, int64_t pitch, Stream) {
  *loss = 0;
  for (int64_t t = 0; t < tokens; ++t, logits += pitch) {
    if (target[t] < 0) {
      if (gradient) std::fill_n(logits, pitch, 0.0);
      continue;
    }
    const double top = *std::max_element(logits, logits + vocab);
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logits[v] - top);
    *loss += scale * (std::log(sum) + (top - logits[target[t]]));
    for (int64_t v = 0; v < vocab && gradient; ++v)
      logits[v] = scale * (std::exp(logits[v] - top) / sum - (v == target[t] ? 1 : 0));
    if (gradient) std::fill(logits + vocab, logits + pitch, 0.0);
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

void square_sums(double* sums, const double* x, const double* acc, double factor, int64_t n,
                 Stream) {
  std::vector<double> squares(kSquareSums);
  for (int64_t i = 0; i < n; ++i) {
    squares[static_cast<size_t>(i / kSquareRun % kSquareSums)] += x[i] * x[i];
  }
  for (int64_t j = 0; j < kSquareSums; ++j) {
    sums[j] = (acc != nullptr ? acc[j] : 0) + factor * squares[static_cast<size_t>(j)];
  }
}

void clip(double* y, const double* x, const double* square_sums, double limit, int64_t n, Stream) {
  const double norm = std::sqrt(std::accumulate(square_sums, square_sums + kSquareSums, 0.0));
  const double factor = std::min(1.0, limit / (norm + 1e-6));
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
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
      .rope_angles = rope_angles,
      .rope = rope,
      .map = map,
      .map_dx = map_dx,
      .mul = mul,
      .row_dot = row_dot,
      .split_heads = split_heads,
      .join_heads = join_heads,
      .embedding = embedding,
      .embedding_dwte = embedding_dwte,
      .embedding_dwpe = embedding_dwpe,
      .attention = attention,
      .attention_dx = attention_dx,
      .attention_dsinks = attention_dsinks,
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
      .gather = gather,
      .cross_entropy = cross_entropy,
      .balance_loss = balance_loss,
      .z_loss = z_loss,
      .sgd = sgd,
      .adamw = adamw,
      .square_sums = square_sums,
      .clip = clip,
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
