// The GPU's kernels on the host's arrays, for the cases of tests/cuda. The sizes are those that
// kernels/kernels.h says.
#include <algorithm>

#include "tests/cuda/on_device.h"
#include "tests/gpu/stage.h"

namespace moe::test {
namespace {

using kernels::AdamwRates;
using kernels::AttentionShape;
using kernels::ScoreRule;
using kernels::Stream;
using kernels::WeightRule;
using Floats = kernels::KernelTable<float>;

std::string refused;  // what the kernels said when they were given to the stream

const Floats& kernels_of_gpu() {
  return *gpu().kernels;
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

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
          int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc, Stream) {
  Stage s;
  kernels_of_gpu().gemm(ta, tb, m, n, k, alpha, s.in(a, ta ? extent(k, m, lda) : extent(m, k, lda)),
                        lda, s.in(b, tb ? extent(n, k, ldb) : extent(k, n, ldb)), ldb, beta,
                        s.both(c, extent(m, n, ldc)), ldc, s.stream());
  s.end(refused);
}

void fill_bias(float* y, const float* bias, const float* residual, int64_t rows, int64_t cols,
               Stream) {
  Stage s;
  kernels_of_gpu().fill_bias(s.out(y, rows * cols), s.in(bias, cols), s.in(residual, rows * cols),
                             rows, cols, s.stream());
  s.end(refused);
}

void bias_grad(float* db, const float* dy, const float* acc, int64_t rows, int64_t cols, Stream) {
  Stage s;
  kernels_of_gpu().bias_grad(s.out(db, cols), s.in(dy, rows * cols), s.in(acc, cols), rows, cols,
                             s.stream());
  s.end(refused);
}

void layernorm(float* y, float* mean, float* rstd, const float* x, const float* gamma,
               const float* beta, int64_t rows, int64_t cols, Stream) {
  Stage s;
  kernels_of_gpu().layernorm(s.out(y, rows * cols), s.out(mean, rows), s.out(rstd, rows),
                             s.in(x, rows * cols), s.in(gamma, cols), s.in(beta, cols), rows, cols,
                             s.stream());
  s.end(refused);
}

void layernorm_dx(float* dx, const float* dy, const float* x, const float* mean, const float* rstd,
                  const float* gamma, const float* acc, int64_t rows, int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu().layernorm_dx(s.out(dx, n), s.in(dy, n), s.in(x, n), s.in(mean, rows),
                                s.in(rstd, rows), s.in(gamma, cols), s.in(acc, n), rows, cols,
                                s.stream());
  s.end(refused);
}

void layernorm_dw(float* dgamma, float* dbeta, const float* dy, const float* x, const float* mean,
                  const float* rstd, const float* acc_gamma, const float* acc_beta, int64_t rows,
                  int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu().layernorm_dw(s.out(dgamma, cols), s.out(dbeta, cols), s.in(dy, n), s.in(x, n),
                                s.in(mean, rows), s.in(rstd, rows), s.in(acc_gamma, cols),
                                s.in(acc_beta, cols), rows, cols, s.stream());
  s.end(refused);
}

void gelu(float* y, const float* x, const float* bias, int64_t rows, int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu().gelu(s.out(y, n), s.in(x, n), s.in(bias, cols), rows, cols, s.stream());
  s.end(refused);
}

void gelu_dx(float* dx, const float* dy, const float* x, const float* bias, int64_t rows,
             int64_t cols, Stream) {
  Stage s;
  const int64_t n = rows * cols;
  kernels_of_gpu().gelu_dx(s.out(dx, n), s.in(dy, n), s.in(x, n), s.in(bias, cols), rows, cols,
                           s.stream());
  s.end(refused);
}

void embedding(float* x, const int32_t* ids, const float* wte, const float* wpe, int64_t tokens,
               int64_t seq, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu().embedding(
      s.out(x, tokens * hidden), s.in(ids, tokens), s.in(wte, rows_named(ids, tokens) * hidden),
      s.in(wpe, std::min(seq, tokens) * hidden), tokens, seq, hidden, s.stream());
  s.end(refused);
}

void embedding_dwte(float* dwte, const int32_t* ids, const float* dx, const float* acc,
                    int64_t tokens, int64_t vocab, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu().embedding_dwte(s.out(dwte, vocab * hidden), s.in(ids, tokens),
                                  s.in(dx, tokens * hidden), s.in(acc, vocab * hidden), tokens,
                                  vocab, hidden, s.stream());
  s.end(refused);
}

void embedding_dwpe(float* dwpe, const float* dx, const float* acc, int64_t tokens, int64_t seq,
                    int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu().embedding_dwpe(s.out(dwpe, seq * hidden), s.in(dx, tokens * hidden),
                                  s.in(acc, seq * hidden), tokens, seq, hidden, s.stream());
  s.end(refused);
}

int64_t attention_work_bytes(AttentionShape shape) {
  return kernels_of_gpu().attention_work_bytes(shape);
}

/// Values of ctx.
int64_t values(AttentionShape a) {
  return a.batch * a.seq * a.heads * a.head_dim;
}

void attention(float* ctx, float* lse, const float* qkv, AttentionShape a, void* work, Stream) {
  Stage s;
  kernels_of_gpu().attention(s.out(ctx, values(a)), s.out(lse, a.batch * a.heads * a.seq),
                             s.in(qkv, 3 * values(a)), a,
                             s.out(static_cast<char*>(work), attention_work_bytes(a)), s.stream());
  s.end(refused);
}

void attention_dx(float* dqkv, const float* dctx, const float* ctx, const float* qkv,
                  const float* lse, AttentionShape a, void* work, Stream) {
  Stage s;
  kernels_of_gpu().attention_dx(
      s.out(dqkv, 3 * values(a)), s.in(dctx, values(a)), s.in(ctx, values(a)),
      s.in(qkv, 3 * values(a)), s.in(lse, a.batch * a.heads * a.seq), a,
      s.out(static_cast<char*>(work), attention_work_bytes(a)), s.stream());
  s.end(refused);
}

void gate_logits(float* logits, const float* x, const float* w, int64_t tokens, int64_t experts,
                 int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu().gate_logits(s.out(logits, tokens * experts), s.in(x, tokens * hidden),
                               s.in(w, experts * hidden), tokens, experts, hidden, s.stream());
  s.end(refused);
}

void gate_scores(float* p, const float* logits, ScoreRule rule, int64_t tokens, int64_t experts,
                 Stream) {
  Stage s;
  kernels_of_gpu().gate_scores(s.out(p, tokens * experts), s.in(logits, tokens * experts), rule,
                               tokens, experts, s.stream());
  s.end(refused);
}

void gate_dlogits(float* dlogits, const float* dweight, const float* p, const int32_t* expert,
                  WeightRule weight, ScoreRule score, int64_t tokens, int64_t experts, int64_t k,
                  Stream) {
  Stage s;
  const int64_t n = tokens * experts;
  kernels_of_gpu().gate_dlogits(s.out(dlogits, n), s.in(dweight, tokens * k), s.in(p, n),
                                s.in(expert, tokens * k), weight, score, tokens, experts, k,
                                s.stream());
  s.end(refused);
}

void dispatch(float* out, const float* x, const int32_t* slot_choice, int64_t slots, int64_t k,
              int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu().dispatch(s.out(out, slots * hidden),
                            s.in(x, rows_named(slot_choice, slots, k) * hidden),
                            s.in(slot_choice, slots), slots, k, hidden, s.stream());
  s.end(refused);
}

void dispatch_dx(float* dx, const float* dout, const int32_t* choice_slot, const float* acc,
                 int64_t tokens, int64_t k, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu().dispatch_dx(
      s.out(dx, tokens * hidden), s.in(dout, rows_named(choice_slot, tokens * k) * hidden),
      s.in(choice_slot, tokens * k), s.in(acc, tokens * hidden), tokens, k, hidden, s.stream());
  s.end(refused);
}

void combine(float* y, const float* in, const float* weight, const int32_t* choice_slot,
             const float* residual, int64_t tokens, int64_t k, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu().combine(s.out(y, tokens * hidden),
                           s.in(in, rows_named(choice_slot, tokens * k) * hidden),
                           s.in(weight, tokens * k), s.in(choice_slot, tokens * k),
                           s.in(residual, tokens * hidden), tokens, k, hidden, s.stream());
  s.end(refused);
}

void combine_dx(float* din, const float* dy, const float* weight, const int32_t* slot_choice,
                int64_t slots, int64_t k, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu().combine_dx(s.out(din, slots * hidden),
                              s.in(dy, rows_named(slot_choice, slots, k) * hidden),
                              s.in(weight, rows_named(slot_choice, slots)),
                              s.in(slot_choice, slots), slots, k, hidden, s.stream());
  s.end(refused);
}

void combine_dweight(float* dweight, const float* dy, const float* in, const int32_t* choice_slot,
                     int64_t tokens, int64_t k, int64_t hidden, Stream) {
  Stage s;
  kernels_of_gpu().combine_dweight(s.out(dweight, tokens * k), s.in(dy, tokens * hidden),
                                   s.in(in, rows_named(choice_slot, tokens * k) * hidden),
                                   s.in(choice_slot, tokens * k), tokens, k, hidden, s.stream());
  s.end(refused);
}

void cross_entropy(double* loss, float* logits, const int32_t* target, double scale, bool gradient,
                   int64_t tokens, int64_t vocab, Stream) {
  Stage s;
  kernels_of_gpu().cross_entropy(s.out(loss, 1), s.both(logits, tokens * vocab),
                                 s.in(target, tokens), scale, gradient, tokens, vocab, s.stream());
  s.end(refused);
}

void balance_loss(double* loss, float* p, const float* load, ScoreRule rule, double scale,
                  int64_t tokens, int64_t experts, Stream) {
  Stage s;
  kernels_of_gpu().balance_loss(s.out(loss, 1), s.both(p, tokens * experts), s.in(load, experts),
                                rule, scale, tokens, experts, s.stream());
  s.end(refused);
}

void z_loss(double* loss, float* logits, double scale, int64_t tokens, int64_t experts, Stream) {
  Stage s;
  kernels_of_gpu().z_loss(s.out(loss, 1), s.both(logits, tokens * experts), scale, tokens, experts,
                          s.stream());
  s.end(refused);
}

void sgd(float* w, float* v, const float* g, float lr, float momentum, int64_t n, Stream) {
  Stage s;
  kernels_of_gpu().sgd(s.both(w, n), s.both(v, n), s.in(g, n), lr, momentum, n, s.stream());
  s.end(refused);
}

void adamw(float* w, float* m, float* v, const float* g, const AdamwRates& rates,
           const int64_t* step, int64_t n, Stream) {
  Stage s;
  kernels_of_gpu().adamw(s.both(w, n), s.both(m, n), s.both(v, n), s.in(g, n), rates, s.in(step, 1),
                         n, s.stream());
  s.end(refused);
}

void add(float* y, const float* a, const float* b, int64_t n, Stream) {
  Stage s;
  kernels_of_gpu().add(s.out(y, n), s.in(a, n), s.in(b, n), n, s.stream());
  s.end(refused);
}

void sum_n(float* y, const float* const* in, int64_t count, int64_t n, Stream) {
  Stage s;
  std::vector<const float*> on_device;
  for (int64_t i = 0; in != nullptr && i < count; ++i) on_device.push_back(s.in(in[i], n));
  kernels_of_gpu().sum_n(s.out(y, n), on_device.data(), count, n, s.stream());
  s.end(refused);
}

void copy_2d(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width,
             int64_t rows, Stream) {
  Stage s;
  kernels_of_gpu().copy_2d(s.both(static_cast<char*>(to), extent(rows, width, to_pitch)), to_pitch,
                           s.in(static_cast<const char*>(from), extent(rows, width, from_pitch)),
                           from_pitch, width, rows, s.stream());
  s.end(refused);
}

}  // namespace

const Floats& device_table() {
  static constexpr Floats table = {.name = "cuda, from and to the host",
                                   .gemm = gemm,
                                   .fill_bias = fill_bias,
                                   .bias_grad = bias_grad,
                                   .layernorm = layernorm,
                                   .layernorm_dx = layernorm_dx,
                                   .layernorm_dw = layernorm_dw,
                                   .gelu = gelu,
                                   .gelu_dx = gelu_dx,
                                   .embedding = embedding,
                                   .embedding_dwte = embedding_dwte,
                                   .embedding_dwpe = embedding_dwpe,
                                   .attention = attention,
                                   .attention_dx = attention_dx,
                                   .attention_work_bytes = attention_work_bytes,
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
                                   .copy_2d = copy_2d};
  return table;
}

std::string device_error() {
  std::string said = std::exchange(refused, "");
  return said.empty() ? gpu().take_error() : said;
}

void begin_run(uint64_t) {}

}  // namespace moe::test
