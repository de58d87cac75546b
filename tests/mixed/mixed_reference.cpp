#include "tests/mixed/mixed_reference.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <vector>

#include "kernels/each_product.h"
#include "tests/mixed/attention_operands.h"

namespace moe::test {
namespace {

using namespace kernels;

const KernelTable<double>& exact() {
  return reference_table();
}

void store(Bf16& to, double v) {
  to = to_bf16(static_cast<float>(v));
}
void store(float& to, double v) {
  to = static_cast<float>(v);
}

/// Rows that an index map names: from the first to behind the last.
struct Rows {
  int64_t first = 0, end = 0;
  Rows(const int32_t* choice, int64_t n, int64_t divisor) {
    for (int64_t i = 0; i < n; ++i) {
      if (choice[i] < 0) continue;
      const int64_t row = choice[i] / divisor;
      if (end == 0 || row < first) first = row;
      end = std::max(end, row + 1);
    }
  }
};

/// The operands of one call as doubles; what is written goes back when the call is over.
class Operands {
 public:
  ~Operands() {
    for (const auto& write : writes_) write();
  }
  template <class T>
  double* in(const T* p, int64_t n) {
    if (p == nullptr) return nullptr;
    std::vector<double>& copy = copies_.emplace_back();
    for (int64_t i = 0; i < n; ++i) copy.push_back(to_float(p[i]));
    return copy.data();
  }
  /// Only these rows may be read.
  template <class T>
  const double* in(const T* p, Rows rows, int64_t cols) {
    return in(p + rows.first * cols, (rows.end - rows.first) * cols) - rows.first * cols;
  }
  /// Holds what is there until it is written.
  template <class T>
  double* out(T* p, int64_t n) {
    if (p == nullptr) return nullptr;
    double* const copy = in(p, n);
    writes_.push_back([=] {
      for (int64_t i = 0; i < n; ++i) store(p[i], copy[i]);
    });
    return copy;
  }

 private:
  std::list<std::vector<double>> copies_;
  std::list<std::function<void()>> writes_;
};

double* rounded(Operands& o, EitherIn m, int64_t n) {
  if (!m.wide) return o.in(static_cast<const Bf16*>(m.data), n);
  double* const copy = o.in(static_cast<const float*>(m.data), n);
  for (int64_t i = 0; i < n; ++i) copy[i] = to_float(to_bf16(static_cast<float>(copy[i])));
  return copy;
}

int64_t extent(int64_t rows, int64_t cols, int64_t stride) {
  return rows == 0 || cols == 0 ? 0 : (rows - 1) * stride + cols;
}

void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          EitherIn a, int64_t lda, EitherIn b, int64_t ldb, float beta, EitherOut c, int64_t ldc,
          Stream) {
  Operands o;
  const double* const left = rounded(o, a, transpose_a ? extent(k, m, lda) : extent(m, k, lda));
  const double* const right = rounded(o, b, transpose_b ? extent(n, k, ldb) : extent(k, n, ldb));
  const int64_t size = extent(m, n, ldc);
  double* const result =
      c.wide ? o.out(static_cast<float*>(c.data), size) : o.out(static_cast<Bf16*>(c.data), size);
  exact().gemm(transpose_a, transpose_b, m, n, k, alpha, left, lda, right, ldb, beta, result, ldc,
               nullptr);
}

void fill_bias(Bf16* y, const float* bias, const Bf16* residual, int64_t rows, int64_t cols,
               Stream) {
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double b = bias == nullptr ? 0 : bias[i % cols];
    store(y[i], b + (residual == nullptr ? 0 : to_float(residual[i])));
  }
}

void bias_grad(float* db, const Bf16* dy, const float* acc, int64_t rows, int64_t cols, Stream) {
  Operands o;
  exact().bias_grad(o.out(db, cols), o.in(dy, rows * cols), o.in(acc, cols), rows, cols, nullptr);
}

void layernorm(Bf16* y, float* mean, float* rstd, const Bf16* x, const float* gamma,
               const float* beta, int64_t rows, int64_t cols, Stream) {
  Operands o;
  const int64_t n = rows * cols;
  exact().layernorm(o.out(y, n), o.out(mean, rows), o.out(rstd, rows), o.in(x, n),
                    o.in(gamma, cols), o.in(beta, cols), rows, cols, nullptr);
}

void layernorm_dx(Bf16* dx, const Bf16* dy, const Bf16* x, const float* mean, const float* rstd,
                  const float* gamma, const Bf16* acc, int64_t rows, int64_t cols, Stream) {
  Operands o;
  const int64_t n = rows * cols;
  exact().layernorm_dx(o.out(dx, n), o.in(dy, n), o.in(x, n), o.in(mean, rows), o.in(rstd, rows),
                       o.in(gamma, cols), o.in(acc, n), rows, cols, nullptr);
}

void layernorm_dw(float* dgamma, float* dbeta, const Bf16* dy, const Bf16* x, const float* mean,
                  const float* rstd, const float* acc_gamma, const float* acc_beta, int64_t rows,
                  int64_t cols, Stream) {
  Operands o;
  const int64_t n = rows * cols;
  exact().layernorm_dw(o.out(dgamma, cols), o.out(dbeta, cols), o.in(dy, n), o.in(x, n),
                       o.in(mean, rows), o.in(rstd, rows), o.in(acc_gamma, cols),
                       o.in(acc_beta, cols), rows, cols, nullptr);
}

void rmsnorm(Bf16* y, float* rstd, const Bf16* x, const float* gamma, float eps, int64_t rows,
             int64_t cols, Stream) {
  Operands o;
  const int64_t n = rows * cols;
  exact().rmsnorm(o.out(y, n), o.out(rstd, rows), o.in(x, n), o.in(gamma, cols), eps, rows, cols,
                  nullptr);
}

void rmsnorm_dx(Bf16* dx, const Bf16* dy, const Bf16* x, const float* rstd, const float* gamma,
                const Bf16* acc, int64_t rows, int64_t cols, Stream) {
  Operands o;
  const int64_t n = rows * cols;
  exact().rmsnorm_dx(o.out(dx, n), o.in(dy, n), o.in(x, n), o.in(rstd, rows), o.in(gamma, cols),
                     o.in(acc, n), rows, cols, nullptr);
}

void rmsnorm_dw(float* dgamma, const Bf16* dy, const Bf16* x, const float* rstd, const float* acc,
                int64_t rows, int64_t cols, Stream) {
  Operands o;
  const int64_t n = rows * cols;
  exact().rmsnorm_dw(o.out(dgamma, cols), o.in(dy, n), o.in(x, n), o.in(rstd, rows),
                     o.in(acc, cols), rows, cols, nullptr);
}

void gelu(Bf16* y, const Bf16* x, const float* bias, int64_t rows, int64_t cols, Stream) {
  Operands o;
  const int64_t n = rows * cols;
  exact().gelu(o.out(y, n), o.in(x, n), o.in(bias, cols), rows, cols, nullptr);
}

void gelu_dx(Bf16* dx, const Bf16* dy, const Bf16* x, const float* bias, int64_t rows, int64_t cols,
             Stream) {
  Operands o;
  const int64_t n = rows * cols;
  exact().gelu_dx(o.out(dx, n), o.in(dy, n), o.in(x, n), o.in(bias, cols), rows, cols, nullptr);
}

void silu_mul(Bf16* y, const Bf16* x, GatedForm form, int64_t rows, int64_t cols, Stream) {
  Operands o;
  const int64_t n = rows * cols;
  exact().silu_mul(o.out(y, n), o.in(x, 2 * n), form, rows, cols, nullptr);
}

void silu_mul_dx(Bf16* dx, const Bf16* dy, const Bf16* x, GatedForm form, int64_t rows,
                 int64_t cols, Stream) {
  Operands o;
  const int64_t n = rows * cols;
  exact().silu_mul_dx(o.out(dx, 2 * n), o.in(dy, n), o.in(x, 2 * n), form, rows, cols, nullptr);
}

void map(Bf16* y, const Bf16* x, Map map, float factor, const Bf16* acc, int64_t n, Stream) {
  Operands o;
  exact().map(o.out(y, n), o.in(x, n), map, factor, o.in(acc, n), n, nullptr);
}

void map_dx(Bf16* dx, const Bf16* dy, const Bf16* y, Map map, const Bf16* acc, int64_t n, Stream) {
  Operands o;
  exact().map_dx(o.out(dx, n), o.in(dy, n), o.in(y, n), map, o.in(acc, n), n, nullptr);
}

void mul(Bf16* y, const Bf16* a, const Bf16* b, const Bf16* acc, int64_t rows, int64_t cols,
         bool by_row, Stream) {
  Operands o;
  const int64_t n = rows * cols;
  exact().mul(o.out(y, n), o.in(a, n), o.in(b, by_row ? rows : n), o.in(acc, n), rows, cols, by_row,
              nullptr);
}

void row_dot(Bf16* y, const Bf16* a, const Bf16* b, int64_t rows, int64_t cols, Stream) {
  Operands o;
  exact().row_dot(o.out(y, rows), o.in(a, rows * cols), o.in(b, rows * cols), rows, cols, nullptr);
}

void split_heads(Bf16* first, Bf16* second, const Bf16* x, HeadColumns columns, int64_t rows,
                 Stream) {
  Operands o;
  exact().split_heads(o.out(first, rows * columns.row_of_first()),
                      o.out(second, rows * columns.row_of_second()), o.in(x, rows * columns.row()),
                      columns, rows, nullptr);
}

void join_heads(Bf16* x, const Bf16* first, const Bf16* second, HeadColumns columns, int64_t rows,
                Stream) {
  Operands o;
  exact().join_heads(o.out(x, rows * columns.row()), o.in(first, rows * columns.row_of_first()),
                     o.in(second, rows * columns.row_of_second()), columns, rows, nullptr);
}

void rope(Bf16* y, const Bf16* x, const float* angles, const RopeShape& s, Stream) {
  Operands o;
  const int64_t n = s.tokens * s.heads * s.head_dim;
  exact().rope(o.out(y, n), o.in(x, n), o.in(angles, s.seq * 2 * s.pairs), s, nullptr);
}

void embedding(Bf16* x, const int32_t* ids, const float* wte, const float* wpe, int64_t tokens,
               int64_t seq, int64_t hidden, Stream) {
  Operands o;
  exact().embedding(o.out(x, tokens * hidden), ids, o.in(wte, Rows(ids, tokens, 1), hidden),
                    o.in(wpe, seq * hidden), tokens, seq, hidden, nullptr);
}

void embedding_dwte(float* dwte, const int32_t* ids, const Bf16* dx, const float* acc,
                    int64_t tokens, int64_t vocab, int64_t hidden, Stream) {
  Operands o;
  const int64_t n = vocab * hidden;
  exact().embedding_dwte(o.out(dwte, n), ids, o.in(dx, tokens * hidden), o.in(acc, n), tokens,
                         vocab, hidden, nullptr);
}

void embedding_dwpe(float* dwpe, const Bf16* dx, const float* acc, int64_t tokens, int64_t seq,
                    int64_t hidden, Stream) {
  Operands o;
  const int64_t n = seq * hidden;
  exact().embedding_dwpe(o.out(dwpe, n), o.in(dx, tokens * hidden), o.in(acc, n), tokens, seq,
                         hidden, nullptr);
}

/// Numbers of ctx, and of what is square in seq.
int64_t wide_of(AttentionShape s) {
  return s.batch * s.seq * s.heads * s.value_dim;
}
int64_t square_of(AttentionShape s) {
  return s.batch * s.heads * s.seq * s.seq;
}
std::vector<char> work_of(AttentionShape s) {
  return std::vector<char>(static_cast<size_t>(exact().attention_work_bytes(s)));
}

AttentionIn<double> widened(Operands& o, AttentionIn<Bf16> in, AttentionShape s) {
  return moved(in, s, [&](const auto* p, int64_t n) { return o.in(p, n); });
}

void attention(Bf16* ctx, float* lse, AttentionIn<Bf16> in, AttentionShape s, void*, Stream) {
  Operands o;
  exact().attention(o.out(ctx, wide_of(s)), o.out(lse, s.batch * s.heads * s.seq),
                    widened(o, in, s), s, work_of(s).data(), nullptr);
}

void attention_dx(AttentionOut<Bf16> out, const Bf16* dctx, const Bf16* ctx, AttentionIn<Bf16> in,
                  const float* lse, AttentionShape s, void*, Stream) {
  Operands o;
  const int64_t n = wide_of(s);
  exact().attention_dx(moved(out, s, [&](auto* p, int64_t count) { return o.out(p, count); }),
                       o.in(dctx, n), o.in(ctx, n), widened(o, in, s),
                       o.in(lse, s.batch * s.heads * s.seq), s, work_of(s).data(), nullptr);
}

void attention_dsinks(float* dsinks, const float* lse, const Bf16* dctx, const Bf16* ctx,
                      const float* sinks, const float* acc, AttentionShape s, Stream) {
  Operands o;
  const int64_t n = wide_of(s);
  exact().attention_dsinks(o.out(dsinks, s.heads), o.in(lse, s.batch * s.heads * s.seq),
                           o.in(dctx, n), o.in(ctx, n), o.in(sinks, s.heads), o.in(acc, s.heads), s,
                           nullptr);
}

void attn_score(Bf16* score, const Bf16* qkv, AttentionShape s, Stream) {
  Operands o;
  exact().attn_score(o.out(score, square_of(s)), o.in(qkv, 3 * wide_of(s)), s, nullptr);
}

void attn_softmax(Bf16* prob, const Bf16* score, AttentionShape s, Stream) {
  Operands o;
  exact().attn_softmax(o.out(prob, square_of(s)), o.in(score, square_of(s)), s, nullptr);
}

void attn_context(Bf16* ctx, const Bf16* prob, const Bf16* qkv, AttentionShape s, Stream) {
  Operands o;
  exact().attn_context(o.out(ctx, wide_of(s)), o.in(prob, square_of(s)), o.in(qkv, 3 * wide_of(s)),
                       s, nullptr);
}

void attn_context_dx(Bf16* dprob, Bf16* dqkv, const Bf16* dctx, const Bf16* prob, const Bf16* qkv,
                     AttentionShape s, Stream) {
  Operands o;
  exact().attn_context_dx(o.out(dprob, square_of(s)), o.out(dqkv, 3 * wide_of(s)),
                          o.in(dctx, wide_of(s)), o.in(prob, square_of(s)),
                          o.in(qkv, 3 * wide_of(s)), s, nullptr);
}

void attn_softmax_dx(Bf16* dscore, const Bf16* dprob, const Bf16* prob, AttentionShape s, Stream) {
  Operands o;
  const int64_t n = square_of(s);
  exact().attn_softmax_dx(o.out(dscore, n), o.in(dprob, n), o.in(prob, n), s, nullptr);
}

void attn_score_dx(Bf16* dqkv, const Bf16* dscore, const Bf16* qkv, AttentionShape s, Stream) {
  Operands o;
  exact().attn_score_dx(o.out(dqkv, 3 * wide_of(s)), o.in(dscore, square_of(s)),
                        o.in(qkv, 3 * wide_of(s)), s, nullptr);
}

void gate_logits(float* logits, const Bf16* x, const float* w, const float* bias, int64_t tokens,
                 int64_t experts, int64_t hidden, Stream) {
  Operands o;
  exact().gate_logits(o.out(logits, tokens * experts), o.in(x, tokens * hidden),
                      o.in(w, experts * hidden), o.in(bias, experts), tokens, experts, hidden,
                      nullptr);
}

void dispatch(Bf16* out, const Bf16* x, const int32_t* slot_choice, int64_t slots, int64_t k,
              int64_t hidden, Stream) {
  Operands o;
  exact().dispatch(o.out(out, slots * hidden), o.in(x, Rows(slot_choice, slots, k), hidden),
                   slot_choice, slots, k, hidden, nullptr);
}

void dispatch_dx(Bf16* dx, const Bf16* dout, const int32_t* choice_slot, const Bf16* acc,
                 int64_t tokens, int64_t k, int64_t hidden, Stream) {
  Operands o;
  const int64_t n = tokens * hidden;
  exact().dispatch_dx(o.out(dx, n), o.in(dout, Rows(choice_slot, tokens * k, 1), hidden),
                      choice_slot, o.in(acc, n), tokens, k, hidden, nullptr);
}

void combine(Bf16* y, const Bf16* in, const float* weight, const int32_t* choice_slot,
             const Bf16* residual, int64_t tokens, int64_t k, int64_t hidden, Stream) {
  Operands o;
  const int64_t n = tokens * hidden;
  exact().combine(o.out(y, n), o.in(in, Rows(choice_slot, tokens * k, 1), hidden),
                  o.in(weight, tokens * k), choice_slot, o.in(residual, n), tokens, k, hidden,
                  nullptr);
}

void combine_dx(Bf16* din, const Bf16* dy, const float* weight, const int32_t* slot_choice,
                int64_t slots, int64_t k, int64_t hidden, Stream) {
  Operands o;
  exact().combine_dx(o.out(din, slots * hidden), o.in(dy, Rows(slot_choice, slots, k), hidden),
                     o.in(weight, Rows(slot_choice, slots, 1), 1), slot_choice, slots, k, hidden,
                     nullptr);
}

void combine_dweight(float* dweight, const Bf16* dy, const Bf16* in, const int32_t* choice_slot,
                     int64_t tokens, int64_t k, int64_t hidden, Stream) {
  Operands o;
  exact().combine_dweight(o.out(dweight, tokens * k), o.in(dy, tokens * hidden),
                          o.in(in, Rows(choice_slot, tokens * k, 1), hidden), choice_slot, tokens,
                          k, hidden, nullptr);
}

void cross_entropy(double* loss, Bf16* logits, const int32_t* target, double scale, bool gradient,
                   int64_t tokens, int64_t vocab, Stream) {
  Operands o;
  exact().cross_entropy(loss, o.out(logits, tokens * vocab), target, scale, gradient, tokens, vocab,
                        nullptr);
}

void add(Bf16* y, const Bf16* a, const Bf16* b, int64_t n, Stream) {
  Operands o;
  exact().add(o.out(y, n), o.in(a, n), o.in(b, n), n, nullptr);
}

void sum_n(Bf16* y, const Bf16* const* in, int64_t count, int64_t n, Stream) {
  Operands o;
  std::vector<const double*> list;
  for (int64_t i = 0; i < count; ++i) list.push_back(o.in(in[i], n));
  exact().sum_n(o.out(y, n), list.data(), count, n, nullptr);
}

void round(Bf16* y, const float* x, int64_t n, Stream) {
  for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(x[i]);
}

int64_t first_nonfinite(const Bf16* x, int64_t n) {
  Operands o;
  return exact().first_nonfinite(o.in(x, n), n);
}

}  // namespace

const KernelTable<Bf16>& mixed_reference() {
  static const KernelTable<Bf16> table = {
      .name = "mixed reference",
      .gemm = gemm,
      .gemm_many = each_product<Bf16, gemm, fill_bias, gelu, gelu_dx>,
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
      .rope_angles = nullptr,
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
      .attention_work_bytes = [](AttentionShape) { return int64_t{0}; },
      .attn_score = attn_score,
      .attn_softmax = attn_softmax,
      .attn_context = attn_context,
      .attn_context_dx = attn_context_dx,
      .attn_softmax_dx = attn_softmax_dx,
      .attn_score_dx = attn_score_dx,
      .gate_logits = gate_logits,
      .gate_scores = nullptr,
      .gate_dlogits = nullptr,
      .dispatch = dispatch,
      .dispatch_dx = dispatch_dx,
      .combine = combine,
      .combine_dx = combine_dx,
      .combine_dweight = combine_dweight,
      .cross_entropy = cross_entropy,
      .balance_loss = nullptr,
      .z_loss = nullptr,
      .sgd = nullptr,
      .adamw = nullptr,
      .add = add,
      .sum_n = sum_n,
      .round = round,
      .copy_2d = reference_table().copy_2d,
      .clear = reference_table().clear,
      .first_nonfinite = first_nonfinite,
  };
  return table;
}

}  // namespace moe::test
