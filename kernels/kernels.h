// The one table of compute kernels: plain pointers and sizes, row-major, numerics only.
//
// KernelTable<double> is the plain reference; KernelTable<float> is the fast version for the widest
// instruction set of this machine. KernelTable<Bf16> keeps activations and their gradients in
// bfloat16 (T) and computes in float32; parameters with their gradients and states, and all that
// scores, weighs or normalises, stay float32 (Wide<T>). All have the same functions, so an op's
// glue is written once; null in KernelTable<Bf16> are those that only take Wide<T>.
// Invariants: no kernel allocates memory that outlives the call, starts threads, or uses atomics;
// the sum for one element runs in a fixed order, whatever the other elements are; NaN and infinity
// pass through (no -ffinite-math-only). `stream` is opaque; CPU kernels ignore it and are
// synchronous. Index maps hold -1 for 'none'. An accumulator argument `acc` (may be null, may be
// the output itself) is added to the result elementwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/bf16.h"

namespace moe::kernels {

using Stream = void*;

/// How a token's weights for its experts follow from the scores of the gate.
enum class WeightRule : int32_t { kProb, kRenorm, kOne };
/// scores: p = softmax(logits) over experts, or p = sigmoid(logits) elementwise.
enum class ScoreRule : int32_t { kSoftmax, kSigmoid };

/// Sizes of one attention call. qkv is [batch, seq, 3 * heads * head_dim] with q, k, v as column
/// blocks and head j in columns j*head_dim of each block; the mask is causal; scale
/// 1/sqrt(head_dim). own: by this project's kernels even where a device's library has some.
struct AttentionShape {
  int64_t batch, seq, heads, head_dim;
  bool own = false;
};

/// AdamW's settings, the same in every step.
struct AdamwRates {
  double beta1, beta2, eps, lr, weight_decay;
};

/// A matrix of which the caller says at run time whether it is bfloat16 or float32.
class EitherIn {
 public:
  EitherIn(const Bf16* data) : data(data), wide(false) {}
  EitherIn(const float* data) : data(data), wide(true) {}
  /// From its number `n` on.
  EitherIn operator+(int64_t n) const {
    return wide ? EitherIn(static_cast<const float*>(data) + n)
                : EitherIn(static_cast<const Bf16*>(data) + n);
  }
  const void* data;
  bool wide;  // float32
};
class EitherOut {
 public:
  EitherOut(Bf16* data) : data(data), wide(false) {}
  EitherOut(float* data) : data(data), wide(true) {}
  void* data;
  bool wide;
};

/// What goes with a T of a KernelTable: see above. MatrixIn and MatrixOut are a GEMM's operands.
template <class T>
struct TypesOf {
  using Wide = T;
  using MatrixIn = const T*;
  using MatrixOut = T*;
};
template <>
struct TypesOf<Bf16> {
  using Wide = float;
  using MatrixIn = EitherIn;
  using MatrixOut = EitherOut;
};
template <class T>
using Wide = typename TypesOf<T>::Wide;

/// How a device runs the products of one gemm_many; the CPU's run one after the other whatever it
/// is. kBatch: one call for all, where sizes are the same and operands lie equally far apart.
/// kStreams: side by side. kGrouped: one call for products of any sizes. kEach: one after the
/// other. Where a device cannot run them so, kBatch and kGrouped become kStreams.
enum class GemmVariant : int32_t { kBatch, kStreams, kGrouped, kEach };

/// What is done with a product before it is stored: s = alpha * op(a) * op(b) + beta * c + bias +
/// add, and c = s; with before_gelu, *before_gelu = s and c = GELU(s) in its tanh form; or with
/// gelu_at, c = s * GELU'(gelu_at). All but bias are [m,n] as c is; add may be c itself.
/// Requires, where a member is set: beta 0, ldc = n, a c that no other product has, with Bf16 a c
/// in bfloat16. The bias may be rounded to T.
template <class T>
struct Epilogue {
  const Wide<T>* bias = nullptr;  // [n]
  const T* add = nullptr;
  T* before_gelu = nullptr;
  const T* gelu_at = nullptr;
};

/// One product of gemm_many: c[m,n] = alpha * op(a) * op(b) + beta * c, and what follows it.
template <class T>
struct Product {
  int64_t m, n, k;
  typename TypesOf<T>::MatrixIn a, b;
  typename TypesOf<T>::MatrixOut c;
  Epilogue<T> then = {};
};

template <class T>
struct KernelTable {
  using W = Wide<T>;
  using MatrixIn = typename TypesOf<T>::MatrixIn;
  using MatrixOut = typename TypesOf<T>::MatrixOut;

  /// "cpu-v4", "cpu-v3", "cpu-v2", "reference".
  const char* name;

  /// c[m,n] = alpha * op(a) * op(b) + beta * c; op transposes where the flag says so. With Bf16,
  /// operands that are float32 are rounded to bfloat16 first; the sum is float32.
  void (*gemm)(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, W alpha,
               MatrixIn a, int64_t lda, MatrixIn b, int64_t ldb, W beta, MatrixOut c, int64_t ldc,
               Stream stream);
  /// gemm() of each of `count` products, and their epilogues, of which all set the same members.
  /// Those with the same c follow one another and are made in this order; otherwise none writes
  /// what another reads or writes. All a have one type, as have all b and all c. The array is read
  /// during the call alone.
  void (*gemm_many)(GemmVariant variant, bool transpose_a, bool transpose_b, int64_t count,
                    const Product<T>* products, W alpha, int64_t lda, int64_t ldb, W beta,
                    int64_t ldc, Stream stream);

  /// db[c] = acc[c] + sum over r of dy[r,c], r ascending.
  void (*bias_grad)(W* db, const T* dy, const W* acc, int64_t rows, int64_t cols, Stream);

  /// y[r,:] = (x[r,:] - mean) * rstd * gamma + beta; eps 1e-5, biased variance; mean, rstd [rows].
  void (*layernorm)(T* y, W* mean, W* rstd, const T* x, const W* gamma, const W* beta, int64_t rows,
                    int64_t cols, Stream);
  /// dx [rows,cols] (+ acc).
  void (*layernorm_dx)(T* dx, const T* dy, const T* x, const W* mean, const W* rstd, const W* gamma,
                       const T* acc, int64_t rows, int64_t cols, Stream);
  /// dgamma, dbeta [cols] (+ acc_gamma, acc_beta).
  void (*layernorm_dw)(W* dgamma, W* dbeta, const T* dy, const T* x, const W* mean, const W* rstd,
                       const W* acc_gamma, const W* acc_beta, int64_t rows, int64_t cols, Stream);

  /// y = GELU(x + bias[c]), tanh form; bias may be null.
  void (*gelu)(T* y, const T* x, const W* bias, int64_t rows, int64_t cols, Stream);
  /// dx = dy * GELU'(x + bias[c]); dx may be dy.
  void (*gelu_dx)(T* dx, const T* dy, const T* x, const W* bias, int64_t rows, int64_t cols,
                  Stream);

  /// x[t,:] = wte[ids[t],:] + wpe[t % seq,:].
  void (*embedding)(T* x, const int32_t* ids, const W* wte, const W* wpe, int64_t tokens,
                    int64_t seq, int64_t hidden, Stream);
  /// dwte[v,:] = acc[v,:] + sum over t with ids[t] == v of dx[t,:], t ascending. dwte
  /// [vocab,hidden].
  void (*embedding_dwte)(W* dwte, const int32_t* ids, const T* dx, const W* acc, int64_t tokens,
                         int64_t vocab, int64_t hidden, Stream);
  /// dwpe[p,:] = acc + sum over rows b of dx[b*seq+p,:], b ascending.
  void (*embedding_dwpe)(W* dwpe, const T* dx, const W* acc, int64_t tokens, int64_t seq,
                         int64_t hidden, Stream);

  /// Fused causal attention: ctx [batch,seq,heads*head_dim], lse [batch,heads,seq] = log-sum-exp of
  /// the scaled scores, kept for the backward. `work` as attention_work_bytes says.
  void (*attention)(T* ctx, W* lse, const T* qkv, AttentionShape shape, void* work, Stream);
  /// dqkv from dctx; recomputes the probabilities from qkv and lse.
  void (*attention_dx)(T* dqkv, const T* dctx, const T* ctx, const T* qkv, const W* lse,
                       AttentionShape shape, void* work, Stream);
  int64_t (*attention_work_bytes)(AttentionShape shape);

  /// The same in three ops that materialise [batch,heads,seq,seq].
  void (*attn_score)(T* score, const T* qkv, AttentionShape shape, Stream);  // q k^T, unscaled
  void (*attn_softmax)(T* prob, const T* score, AttentionShape shape,
                       Stream);  // scale, mask; above the diagonal 0
  void (*attn_context)(T* ctx, const T* prob, const T* qkv, AttentionShape shape, Stream);
  /// dprob [b,h,s,s] and the v columns of dqkv; the q and k columns are left alone.
  void (*attn_context_dx)(T* dprob, T* dqkv, const T* dctx, const T* prob, const T* qkv,
                          AttentionShape shape, Stream);
  void (*attn_softmax_dx)(T* dscore, const T* dprob, const T* prob, AttentionShape shape, Stream);
  /// the q and k columns of dqkv; the v columns are left alone.
  void (*attn_score_dx)(T* dqkv, const T* dscore, const T* qkv, AttentionShape shape, Stream);

  /// logits[t,e] = sum over i of x[t,i] * w[e,i]. The bits of row t do not depend on `tokens`.
  void (*gate_logits)(W* logits, const T* x, const W* w, int64_t tokens, int64_t experts,
                      int64_t hidden, Stream);
  /// p [tokens,experts], which may be logits; row results do not depend on the number of rows.
  void (*gate_scores)(W* p, const W* logits, ScoreRule rule, int64_t tokens, int64_t experts,
                      Stream);
  /// dlogits [tokens,experts] from dweight [tokens,k] by the weight rule; expert [tokens,k], -1 =
  /// no choice there. A choice that was dropped still counts in kRenorm's sum; its dweight is 0.
  void (*gate_dlogits)(W* dlogits, const W* dweight, const W* p, const int32_t* expert,
                       WeightRule weight, ScoreRule score, int64_t tokens, int64_t experts,
                       int64_t k, Stream);

  /// Slot s of `slots` slots holds choice slot_choice[s] (= token * k + j) or -1.
  /// out[s,:] = x[slot_choice[s] / k,:], or 0.
  void (*dispatch)(T* out, const T* x, const int32_t* slot_choice, int64_t slots, int64_t k,
                   int64_t hidden, Stream);
  /// dx[t,:] = acc[t,:] + sum over j of dout[choice_slot[t*k+j],:], j ascending.
  void (*dispatch_dx)(T* dx, const T* dout, const int32_t* choice_slot, const T* acc,
                      int64_t tokens, int64_t k, int64_t hidden, Stream);
  /// y[t,:] = residual[t,:] + sum over j of weight[t,j] * in[choice_slot[t*k+j],:]; residual may
  /// be null.
  void (*combine)(T* y, const T* in, const W* weight, const int32_t* choice_slot, const T* residual,
                  int64_t tokens, int64_t k, int64_t hidden, Stream);
  /// din[s,:] = weight[choice] * dy[choice / k,:] for choice = slot_choice[s], or 0.
  void (*combine_dx)(T* din, const T* dy, const W* weight, const int32_t* slot_choice,
                     int64_t slots, int64_t k, int64_t hidden, Stream);
  /// dweight[t,j] = dot(dy[t,:], in[choice_slot[t*k+j],:]), 0 where there is no slot.
  void (*combine_dweight)(W* dweight, const T* dy, const T* in, const int32_t* choice_slot,
                          int64_t tokens, int64_t k, int64_t hidden, Stream);

  /// loss[0] (double) = scale * sum over t of -log softmax(logits[t,:])[target[t]];
  /// logits is overwritten by its gradient, scale * (softmax - onehot), when `gradient` is set.
  void (*cross_entropy)(double* loss, T* logits, const int32_t* target, double scale, bool gradient,
                        int64_t tokens, int64_t vocab, Stream);

  /// loss[0] (double) = scale * sum over t, e of load[e] * q[t,e], where q are the scores p
  /// [tokens,experts] of the rule, those of a sigmoid divided by their sum over e; p is overwritten
  /// by the gradient of the logits, load [experts] taken as constant. Row results do not depend on
  /// the number of rows.
  void (*balance_loss)(double* loss, W* p, const W* load, ScoreRule rule, double scale,
                       int64_t tokens, int64_t experts, Stream);
  /// loss[0] (double) = scale * sum over t of log(sum over e of exp(logits[t,e]))^2; logits
  /// [tokens,experts] is overwritten by its gradient.
  void (*z_loss)(double* loss, W* logits, double scale, int64_t tokens, int64_t experts, Stream);

  /// v = momentum * v + g; w = w - lr * v.
  void (*sgd)(W* w, W* v, const W* g, W lr, W momentum, int64_t n, Stream);
  /// m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
  /// w = (1 - lr decay) w - lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps)
  /// with t = *step + 1. step is where the kernel's other operands are and read when it runs, so
  /// that a recording of the call makes another step each time. The factors that depend on t are
  /// made in double.
  void (*adamw)(W* w, W* m, W* v, const W* g, const AdamwRates& rates, const int64_t* step,
                int64_t n, Stream);

  /// y = a + b.
  void (*add)(T* y, const T* a, const T* b, int64_t n, Stream);
  /// y = ((in[0] + in[1]) + in[2]) + ... for every element, in this order.
  void (*sum_n)(T* y, const T* const* in, int64_t count, int64_t n, Stream);
  /// y = x, rounded where T is narrower.
  void (*round)(T* y, const W* x, int64_t n, Stream);
  /// Rows of `width` bytes from a pitched source to a pitched destination.
  void (*copy_2d)(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width,
                  int64_t rows, Stream);
  /// Sets every byte to 0.
  void (*clear)(void* to, int64_t bytes, Stream);
  /// The first index of a NaN or infinity in x, or -1.
  int64_t (*first_nonfinite)(const T* x, int64_t n);
};

/// The plain double reference.
const KernelTable<double>& reference_table();
/// The fast table for this machine, or for the level that MOEBENCH_ISA names (v2, v3, v4).
const KernelTable<float>& fast_table();
/// Every fast table that this machine can run, narrowest first; for tests.
std::vector<const KernelTable<float>*> runnable_tables();
/// What decides the bits and the speed: "openblas 0.3.21 SkylakeX, cpu-v4, build 1f2e3d4c".
std::string kernel_set();

template <class T>
const KernelTable<T>& table();
template <>
inline const KernelTable<float>& table<float>() {
  return fast_table();
}
template <>
inline const KernelTable<double>& table<double>() {
  return reference_table();
}

}  // namespace moe::kernels
