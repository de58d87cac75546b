// The GPU's kernels on the host's arrays, for the cases of tests/cuda. The sizes are those that
// kernels/kernels.h says.
#include <algorithm>

#include "tests/cuda/on_device.h"
#include "tests/gpu/stage.h"
#include "tests/mixed/attention_operands.h"

namespace moe::test {
namespace {

using kernels::AdamwRates;
using kernels::AttentionIn;
using kernels::AttentionOut;
using kernels::AttentionShape;
using kernels::Bf16;
using kernels::EitherIn;
using kernels::EitherOut;
using kernels::ScoreRule;
using kernels::Stream;
using kernels::WeightRule;
using Floats = kernels::KernelTable<float>;

std::string refused;  // what the kernels said when they were given to the stream

template <class T>
const kernels::KernelTable<T>& kernels_of_gpu() {
  if constexpr (std::is_same_v<T, float>) return *gpu().kernels;
  if constexpr (std::is_same_v<T, Bf16>) return *gpu().mixed;
}

/// Rows that a map with -1 for 'none' asks for.
int64_t rows_named(const int32_t* map, int64_t n, int64_t k = 1) {
  const int32_t last = n == 0 ? -1 : *std::max_element(map, map + n);
  return last < 0 ? 0 : last / k + 1;
}

/// Values from the first to the last of a matrix with `ld` values from row to row.
int64_t extent(int64_t rows, int64_t cols, int64_t ld) {
  return rows == 0 || cols == 0 ? 0 : (rows - 1) * ld + cols;
}

EitherIn staged(Stage& s, EitherIn in, int64_t n) {
  if (in.wide) return s.in(static_cast<const float*>(in.data), n);
  return s.in(static_cast<const Bf16*>(in.data), n);
}
EitherOut staged(Stage& s, EitherOut out, int64_t n) {
  if (out.wide) return s.both(static_cast<float*>(out.data), n);
  return s.both(static_cast<Bf16*>(out.data), n);
}
template <class T>
const T* staged(Stage& s, const T* in, int64_t n) {
  return s.in(in, n);
}
template <class T>
T* staged(Stage& s, T* out, int64_t n) {
  return s.both(out, n);
}

template <class T>
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
          typename kernels::TypesOf<T>::MatrixIn a, int64_t lda,
          typename kernels::TypesOf<T>::MatrixIn b, int64_t ldb, float beta,
          typename kernels::TypesOf<T>::MatrixOut c, int64_t ldc, Stream) {
  Stage s;
  const auto x = staged(s, a, ta ? extent(k, m, lda) : extent(m, k, lda));
  const auto y = staged(s, b, tb ? extent(n, k, ldb) : extent(k, n, ldb));
  kernels_of_gpu<T>().gemm(ta, tb, m, n, k, alpha, x, lda, y, ldb, beta,
                           staged(s, c, extent(m, n, ldc)), ldc, s.stream());
  s.end(refused);
}

template <class T>
T* pointer(T* p) {
  return p;
}
const Bf16* pointer(EitherIn in) {
  return static_cast<const Bf16*>(in.data);
}
Bf16* pointer(EitherOut out) {
  return static_cast<Bf16*>(out.data);
}

/// Of operands in T.
template <class T>
void gemm_many(kernels::GemmVariant variant, bool ta, bool tb, int64_t count,
               const kernels::Product<T>* products, float alpha, int64_t lda, int64_t ldb,
               float beta, int64_t ldc, Stream) {
  if (count == 0) return;
  std::vector<kernels::Product<T>> moved(products, products + count);
  Stage s;
  // One operand of all products as one array, from the first to the end of the last: how far apart
  // they lie stays.
  const auto move = [&](auto operand, auto values) {
    auto* begin = pointer(operand(moved[0]));
    if (begin == nullptr) return;
    auto* end = begin;
    for (auto& p : moved) {
      begin = std::min(begin, pointer(operand(p)));
      end = std::max(end, pointer(operand(p)) + values(p));
    }
    auto* const there = staged(s, begin, end - begin);
    for (auto& p : moved) operand(p) = there + (pointer(operand(p)) - begin);
  };
  move(
      [](auto& p) -> auto& { return p.a; },
      [&](const auto& p) { return ta ? extent(p.k, p.m, lda) : extent(p.m, p.k, lda); });
  move(
      [](auto& p) -> auto& { return p.b; },
      [&](const auto& p) { return tb ? extent(p.n, p.k, ldb) : extent(p.k, p.n, ldb); });
  const auto of_c = [&](const auto& p) { return extent(p.m, p.n, ldc); };
  move(
      [](auto& p) -> auto& { return p.c; }, of_c);
  move(
      [](auto& p) -> auto& { return p.then.add; }, of_c);
  move(
      [](auto& p) -> auto& { return p.then.before_gelu; }, of_c);
  move(
      [](auto& p) -> auto& { return p.then.gelu_at; }, of_c);
  move(
      [](auto& p) -> auto& { return p.then.bias; }, [](const auto& p) { return p.n; });
  kernels_of_gpu<T>().gemm_many(variant, ta, tb, count, moved.data(), alpha, lda, ldb, beta, ldc,
                                s.stream());
  s.end(refused);
}

template <class T>
void bias_grad(float* db, const T* dy, const float* acc, int64_t rows, int64_t cols, Stream) {
  Stage s;
  kernels_of_gpu<T>().bias_grad(s.out(db, cols), s.in(dy, rows * cols), s.in(acc, cols), rows, cols,
                                s.stream());
  s.end(refused);
}

template <class T>
void layernorm(T* y, float* mean, float* rstd, const T* x, const float* gamma, const float* beta,
               int64_t rows, int64_t cols, Stream) {
  Stage s;
  kernels_of_gpu<T>().layernorm(s.out(y, rows * cols), s.out(mean, rows), s.out(rstd, rows),
                                s.in(x, rows * cols), s.in(gamma, cols), s.in(beta, cols), rows,
                                cols, s.stream());
  s.end(refused);
}

template <class T>
void layernorm_dx(T* dx, const T* dy, const T* x, const float* mean, const float* rstd,
                  const float* gamma, const T* acc, int64_t rows, int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu<T>().layernorm_dx(s.out(dx, n), s.in(dy, n), s.in(x, n), s.in(mean, rows),
                                   s.in(rstd, rows), s.in(gamma, cols), s.in(acc, n), rows, cols,
                                   s.stream());
  s.end(refused);
}

template <class T>
void layernorm_dw(float* dgamma, float* dbeta, const T* dy, const T* x, const float* mean,
                  const float* rstd, const float* acc_gamma, const float* acc_beta, int64_t rows,
                  int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu<T>().layernorm_dw(s.out(dgamma, cols), s.out(dbeta, cols), s.in(dy, n), s.in(x, n),
                                   s.in(mean, rows), s.in(rstd, rows), s.in(acc_gamma, cols),
                                   s.in(acc_beta, cols), rows, cols, s.stream());
  s.end(refused);
}

template <class T>
void rmsnorm(T* y, float* rstd, const T* x, const float* gamma, float eps, int64_t rows,
             int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu<T>().rmsnorm(s.out(y, n), s.out(rstd, rows), s.in(x, n), s.in(gamma, cols), eps,
                              rows, cols, s.stream());
  s.end(refused);
}

template <class T>
void rmsnorm_dx(T* dx, const T* dy, const T* x, const float* rstd, const float* gamma, const T* acc,
                int64_t rows, int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu<T>().rmsnorm_dx(s.out(dx, n), s.in(dy, n), s.in(x, n), s.in(rstd, rows),
                                 s.in(gamma, cols), s.in(acc, n), rows, cols, s.stream());
  s.end(refused);
}

template <class T>
void rmsnorm_dw(float* dgamma, const T* dy, const T* x, const float* rstd, const float* acc,
                int64_t rows, int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu<T>().rmsnorm_dw(s.out(dgamma, cols), s.in(dy, n), s.in(x, n), s.in(rstd, rows),
                                 s.in(acc, cols), rows, cols, s.stream());
  s.end(refused);
}

template <class T>
void gelu(T* y, const T* x, const float* bias, int64_t rows, int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu<T>().gelu(s.out(y, n), s.in(x, n), s.in(bias, cols), rows, cols, s.stream());
  s.end(refused);
}

template <class T>
void gelu_dx(T* dx, const T* dy, const T* x, const float* bias, int64_t rows, int64_t cols,
             Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu<T>().gelu_dx(s.out(dx, n), s.in(dy, n), s.in(x, n), s.in(bias, cols), rows, cols,
                              s.stream());
  s.end(refused);
}

template <class T>
void silu_mul(T* y, const T* x, kernels::GatedForm form, int64_t rows, int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu<T>().silu_mul(s.out(y, n), s.in(x, 2 * n), form, rows, cols, s.stream());
  s.end(refused);
}

template <class T>
void silu_mul_dx(T* dx, const T* dy, const T* x, kernels::GatedForm form, int64_t rows,
                 int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu<T>().silu_mul_dx(s.out(dx, 2 * n), s.in(dy, n), s.in(x, 2 * n), form, rows, cols,
                                  s.stream());
  s.end(refused);
}

void rope_angles(float* angles, const kernels::RopeFrequencies& f, int64_t seq, Stream) {
  Stage s;
  kernels_of_gpu<float>().rope_angles(s.out(angles, seq * 2 * f.pairs), f, seq, s.stream());
  s.end(refused);
}

template <class T>
void rope(T* y, const T* x, const float* angles, const kernels::RopeShape& shape, Stream) {
  Stage s;
  const int64_t n = shape.tokens * shape.heads * shape.head_dim;
  kernels_of_gpu<T>().rope(s.out(y, n), s.in(x, n), s.in(angles, shape.seq * 2 * shape.pairs),
                           shape, s.stream());
  s.end(refused);
}

template <class T>
void map(T* y, const T* x, kernels::Map map, float factor, const T* acc, int64_t n, Stream) {
  Stage s;
  kernels_of_gpu<T>().map(s.out(y, n), s.in(x, n), map, factor, s.in(acc, n), n, s.stream());
  s.end(refused);
}

template <class T>
void map_dx(T* dx, const T* dy, const T* y, kernels::Map map, const T* acc, int64_t n, Stream) {
  Stage s;
  kernels_of_gpu<T>().map_dx(s.out(dx, n), s.in(dy, n), s.in(y, n), map, s.in(acc, n), n,
                             s.stream());
  s.end(refused);
}

template <class T>
void mul(T* y, const T* a, const T* b, const T* acc, int64_t rows, int64_t cols, bool by_row,
         Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu<T>().mul(s.out(y, n), s.in(a, n), s.in(b, by_row ? rows : n), s.in(acc, n), rows,
                          cols, by_row, s.stream());
  s.end(refused);
}

template <class T>
void row_dot(T* y, const T* a, const T* b, int64_t rows, int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu<T>().row_dot(s.out(y, rows), s.in(a, n), s.in(b, n), rows, cols, s.stream());
  s.end(refused);
}

template <class T>
void split_heads(T* first, T* second, const T* x, kernels::HeadColumns columns, int64_t rows,
                 Stream) {
  Stage s;
  kernels_of_gpu<T>().split_heads(s.out(first, rows * columns.row_of_first()),
                                  s.out(second, rows * columns.row_of_second()),
                                  s.in(x, rows * columns.row()), columns, rows, s.stream());
  s.end(refused);
}

template <class T>
void join_heads(T* x, const T* first, const T* second, kernels::HeadColumns columns, int64_t rows,
                Stream) {
  Stage s;
  kernels_of_gpu<T>().join_heads(
      s.out(x, rows * columns.row()), s.in(first, rows * columns.row_of_first()),
      s.in(second, rows * columns.row_of_second()), columns, rows, s.stream());
  s.end(refused);
}

template <class T>
void embedding(T* x, const int32_t* ids, const float* wte, const float* wpe, int64_t tokens,
               int64_t seq, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu<T>().embedding(
      s.out(x, tokens * hidden), s.in(ids, tokens), s.in(wte, rows_named(ids, tokens) * hidden),
      s.in(wpe, std::min(seq, tokens) * hidden), tokens, seq, hidden, s.stream());
  s.end(refused);
}

template <class T>
void embedding_dwte(float* dwte, const int32_t* ids, const T* dx, const float* acc, int64_t tokens,
                    int64_t vocab, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu<T>().embedding_dwte(s.out(dwte, vocab * hidden), s.in(ids, tokens),
                                     s.in(dx, tokens * hidden), s.in(acc, vocab * hidden), tokens,
                                     vocab, hidden, s.stream());
  s.end(refused);
}

template <class T>
void embedding_dwpe(float* dwpe, const T* dx, const float* acc, int64_t tokens, int64_t seq,
                    int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu<T>().embedding_dwpe(s.out(dwpe, seq * hidden), s.in(dx, tokens * hidden),
                                     s.in(acc, seq * hidden), tokens, seq, hidden, s.stream());
  s.end(refused);
}

template <class T>
int64_t attention_work_bytes(AttentionShape shape) {
  return kernels_of_gpu<T>().attention_work_bytes(shape);
}

/// Values of ctx.
int64_t values(AttentionShape a) {
  return a.batch * a.seq * a.heads * a.value_dim;
}

template <class T>
AttentionIn<T> staged(Stage& s, AttentionIn<T> in, AttentionShape a) {
  return moved(in, a, [&](const auto* p, int64_t n) { return s.in(p, n); });
}

template <class T>
void attention(T* ctx, float* lse, AttentionIn<T> in, AttentionShape a, void* work, Stream) {
  Stage s;
  kernels_of_gpu<T>().attention(
      s.out(ctx, values(a)), s.out(lse, a.batch * a.heads * a.seq), staged(s, in, a), a,
      s.out(static_cast<char*>(work), attention_work_bytes<T>(a)), s.stream());
  s.end(refused);
}

template <class T>
void attention_dx(AttentionOut<T> out, const T* dctx, const T* ctx, AttentionIn<T> in,
                  const float* lse, AttentionShape a, void* work, Stream) {
  Stage s;
  kernels_of_gpu<T>().attention_dx(
      moved(out, a, [&](auto* p, int64_t n) { return s.both(p, n); }), s.in(dctx, values(a)),
      s.in(ctx, values(a)), staged(s, in, a), s.in(lse, a.batch * a.heads * a.seq), a,
      s.out(static_cast<char*>(work), attention_work_bytes<T>(a)), s.stream());
  s.end(refused);
}

template <class T>
void attention_dsinks(float* dsinks, const float* lse, const T* dctx, const T* ctx,
                      const float* sinks, const float* acc, AttentionShape a, Stream) {
  Stage s;
  kernels_of_gpu<T>().attention_dsinks(s.out(dsinks, a.heads), s.in(lse, a.batch * a.heads * a.seq),
                                       s.in(dctx, values(a)), s.in(ctx, values(a)),
                                       s.in(sinks, a.heads), s.in(acc, a.heads), a, s.stream());
  s.end(refused);
}

template <class T>
void gate_logits(float* logits, const T* x, const float* w, const float* bias, int64_t tokens,
                 int64_t experts, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu<T>().gate_logits(s.out(logits, tokens * experts), s.in(x, tokens * hidden),
                                  s.in(w, experts * hidden), s.in(bias, experts), tokens, experts,
                                  hidden, s.stream());
  s.end(refused);
}

void gate_scores(float* p, const float* logits, ScoreRule rule, int64_t tokens, int64_t experts,
                 Stream) {
  Stage s;
  kernels_of_gpu<float>().gate_scores(s.out(p, tokens * experts), s.in(logits, tokens * experts),
                                      rule, tokens, experts, s.stream());
  s.end(refused);
}

void gate_dlogits(float* dlogits, const float* dweight, const float* p, const int32_t* expert,
                  WeightRule weight, ScoreRule score, int64_t tokens, int64_t experts, int64_t k,
                  Stream) {
  Stage s;
  const int64_t n = tokens * experts;
  kernels_of_gpu<float>().gate_dlogits(s.out(dlogits, n), s.in(dweight, tokens * k), s.in(p, n),
                                       s.in(expert, tokens * k), weight, score, tokens, experts, k,
                                       s.stream());
  s.end(refused);
}

template <class T>
void dispatch(T* out, const T* x, const int32_t* slot_choice, int64_t slots, int64_t k,
              int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu<T>().dispatch(s.out(out, slots * hidden),
                               s.in(x, rows_named(slot_choice, slots, k) * hidden),
                               s.in(slot_choice, slots), slots, k, hidden, s.stream());
  s.end(refused);
}

template <class T>
void dispatch_dx(T* dx, const T* dout, const int32_t* choice_slot, const T* acc, int64_t tokens,
                 int64_t k, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu<T>().dispatch_dx(
      s.out(dx, tokens * hidden), s.in(dout, rows_named(choice_slot, tokens * k) * hidden),
      s.in(choice_slot, tokens * k), s.in(acc, tokens * hidden), tokens, k, hidden, s.stream());
  s.end(refused);
}

template <class T>
void combine(T* y, const T* in, const float* weight, const int32_t* choice_slot, const T* residual,
             int64_t tokens, int64_t k, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu<T>().combine(s.out(y, tokens * hidden),
                              s.in(in, rows_named(choice_slot, tokens * k) * hidden),
                              s.in(weight, tokens * k), s.in(choice_slot, tokens * k),
                              s.in(residual, tokens * hidden), tokens, k, hidden, s.stream());
  s.end(refused);
}

template <class T>
void combine_dx(T* din, const T* dy, const float* weight, const int32_t* slot_choice, int64_t slots,
                int64_t k, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu<T>().combine_dx(s.out(din, slots * hidden),
                                 s.in(dy, rows_named(slot_choice, slots, k) * hidden),
                                 s.in(weight, rows_named(slot_choice, slots)),
                                 s.in(slot_choice, slots), slots, k, hidden, s.stream());
  s.end(refused);
}

template <class T>
void combine_dweight(float* dweight, const T* dy, const T* in, const int32_t* choice_slot,
                     int64_t tokens, int64_t k, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu<T>().combine_dweight(s.out(dweight, tokens * k), s.in(dy, tokens * hidden),
                                      s.in(in, rows_named(choice_slot, tokens * k) * hidden),
                                      s.in(choice_slot, tokens * k), tokens, k, hidden, s.stream());
  s.end(refused);
}

template <class T>
void cross_entropy(double* loss, T* logits, const int32_t* target, double scale, bool gradient,
                   int64_t tokens, int64_t vocab, Stream) {
  Stage s;
  kernels_of_gpu<T>().cross_entropy(s.out(loss, 1), s.both(logits, tokens * vocab),
                                    s.in(target, tokens), scale, gradient, tokens, vocab,
                                    s.stream());
  s.end(refused);
}

void balance_loss(double* loss, float* p, const float* load, ScoreRule rule, double scale,
                  int64_t tokens, int64_t experts, Stream) {
  Stage s;
  kernels_of_gpu<float>().balance_loss(s.out(loss, 1), s.both(p, tokens * experts),
                                       s.in(load, experts), rule, scale, tokens, experts,
                                       s.stream());
  s.end(refused);
}

void z_loss(double* loss, float* logits, double scale, int64_t tokens, int64_t experts, Stream) {
  Stage s;
  kernels_of_gpu<float>().z_loss(s.out(loss, 1), s.both(logits, tokens * experts), scale, tokens,
                                 experts, s.stream());
  s.end(refused);
}

void sgd(float* w, float* v, const float* g, float lr, float momentum, int64_t n, Stream) {
  Stage s;
  kernels_of_gpu<float>().sgd(s.both(w, n), s.both(v, n), s.in(g, n), lr, momentum, n, s.stream());
  s.end(refused);
}

void adamw(float* w, float* m, float* v, const float* g, const AdamwRates& rates,
           const int64_t* step, int64_t n, Stream) {
  Stage s;
  kernels_of_gpu<float>().adamw(s.both(w, n), s.both(m, n), s.both(v, n), s.in(g, n), rates,
                                s.in(step, 1), n, s.stream());
  s.end(refused);
}

template <class T>
void add(T* y, const T* a, const T* b, int64_t n, Stream) {
  Stage s;
  kernels_of_gpu<T>().add(s.out(y, n), s.in(a, n), s.in(b, n), n, s.stream());
  s.end(refused);
}

template <class T>
void sum_n(T* y, const T* const* in, int64_t count, int64_t n, Stream) {
  Stage s;
  std::vector<const T*> on_device;
  for (int64_t i = 0; in != nullptr && i < count; ++i) on_device.push_back(s.in(in[i], n));
  kernels_of_gpu<T>().sum_n(s.out(y, n), on_device.data(), count, n, s.stream());
  s.end(refused);
}

template <class T>
void round(T* y, const kernels::Wide<T>* x, int64_t n, Stream) {
  Stage s;
  kernels_of_gpu<T>().round(s.out(y, n), s.in(x, n), n, s.stream());
  s.end(refused);
}

void copy_2d(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width,
             int64_t rows, Stream) {
  Stage s;
  kernels_of_gpu<float>().copy_2d(
      s.both(static_cast<char*>(to), extent(rows, width, to_pitch)), to_pitch,
      s.in(static_cast<const char*>(from), extent(rows, width, from_pitch)), from_pitch, width,
      rows, s.stream());
  s.end(refused);
}

/// What a table of any T has.
template <class T>
kernels::KernelTable<T> common(const char* name) {
  return {.name = name,
          .gemm = gemm<T>,
          .gemm_many = gemm_many<T>,
          .bias_grad = bias_grad<T>,
          .layernorm = layernorm<T>,
          .layernorm_dx = layernorm_dx<T>,
          .layernorm_dw = layernorm_dw<T>,
          .rmsnorm = rmsnorm<T>,
          .rmsnorm_dx = rmsnorm_dx<T>,
          .rmsnorm_dw = rmsnorm_dw<T>,
          .gelu = gelu<T>,
          .gelu_dx = gelu_dx<T>,
          .silu_mul = silu_mul<T>,
          .silu_mul_dx = silu_mul_dx<T>,
          .rope = rope<T>,
          .map = map<T>,
          .map_dx = map_dx<T>,
          .mul = mul<T>,
          .row_dot = row_dot<T>,
          .split_heads = split_heads<T>,
          .join_heads = join_heads<T>,
          .embedding = embedding<T>,
          .embedding_dwte = embedding_dwte<T>,
          .embedding_dwpe = embedding_dwpe<T>,
          .attention = attention<T>,
          .attention_dx = attention_dx<T>,
          .attention_dsinks = attention_dsinks<T>,
          .attention_work_bytes = attention_work_bytes<T>,
          .gate_logits = gate_logits<T>,
          .dispatch = dispatch<T>,
          .dispatch_dx = dispatch_dx<T>,
          .combine = combine<T>,
          .combine_dx = combine_dx<T>,
          .combine_dweight = combine_dweight<T>,
          .cross_entropy = cross_entropy<T>,
          .add = add<T>,
          .sum_n = sum_n<T>,
          .round = round<T>,
          .copy_2d = copy_2d};
}

}  // namespace

const Floats& device_table() {
  static const Floats table = [] {
    Floats all = common<float>("cuda, from and to the host");
    all.gate_scores = gate_scores;
    all.gate_dlogits = gate_dlogits;
    all.balance_loss = balance_loss;
    all.z_loss = z_loss;
    all.rope_angles = rope_angles;
    all.sgd = sgd;
    all.adamw = adamw;
    return all;
  }();
  return table;
}

const kernels::KernelTable<Bf16>& device_mixed() {
  static const auto table = common<Bf16>("cuda mixed, from and to the host");
  return table;
}

std::string device_error() {
  std::string said = std::exchange(refused, "");
  return said.empty() ? gpu().take_error() : said;
}

void begin_run(uint64_t) {}

}  // namespace moe::test
