// The table of compute kernels: plain pointers and sizes, row-major, only numerics. Devices,
// streams and memory are in device.h; ops and shapes are in engine/ops.
//
// KernelTable<double> is the plain reference, KernelTable<float> the fast version for the widest
// instruction set of this machine. KernelTable<Bf16> stores activations and their gradients in
// bfloat16 (type T) and computes in float32. Parameters, their gradients and optimizer states, the
// gate's logits, scores and weights, and statistics of norms and attention stay float32 (type
// Wide<T>). All tables have the same functions, so that the code that calls kernels is written once
// per op; in KernelTable<Bf16>, functions that only take Wide<T> are null.
//
// Invariants: no kernel of a table starts threads or uses atomics. Only libraries and, on a GPU,
// matrix products, losses and sums of columns keep memory after a call. For given sizes, each
// element is summed in a fixed order, whatever the values. NaN and infinity pass through (no
// -ffinite-math-only). `stream` is opaque; CPU kernels ignore it and are synchronous. In index maps
// -1 means 'none'. An accumulator argument `acc` is added to the result elementwise; it may be
// null, or the output itself.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/gate_rules.h"
#include "kernels/maps.h"

namespace moe::kernels {

using Stream = void*;

/// Sizes of one attention call. Head j of a matrix is its columns [j * width, (j + 1) * width); the
/// width is head_dim for q and k, and value_dim for v and ctx. Query head h reads head
/// h / (heads / kv_heads) of k and v. The mask is causal; with a window, query i sees only the keys
/// after i - window. By default, q, k and v are three blocks of columns of one tensor qkv
/// [batch, seq, 3 * heads * head_dim]. `own`: use this project's kernels even where cuDNN has
/// kernels for these sizes.
struct AttentionShape {
  int64_t batch, seq, heads, head_dim;
  bool own = false;
  int64_t kv_heads = heads, value_dim = head_dim;
  int64_t window = 0;  // 0: none
  double scale = 0;    // of scores; 0: 1/sqrt(head_dim)
  /// On the CPU alone: the keys of a sequence before its first query, which has this position;
  /// there are seq - first queries, in the rows of q, ctx and lse.
  int64_t first = 0;
  bool add = false;  // whether attention_dx adds to dk and dv instead of writing them
  /// With `first`: the keys that there are, the first of the sequence; 0: all.
  int64_t known = 0;
  int64_t queries() const { return seq - first; }
  int64_t keys() const { return known > 0 ? known : seq; }
  /// Elements from row to row of q, k, v and of their gradients.
  int64_t q_pitch = 3 * heads * head_dim, k_pitch = q_pitch, v_pitch = q_pitch;
};

/// Settings of AdamW, the same in every step.
struct AdamwRates {
  double beta1, beta2, eps, lr, weight_decay;
};

/// In how many sums square_sums adds up squares, and how many numbers of each come in a row.
constexpr int64_t kSquareSums = 1024, kSquareRun = 1024;

/// The form of a gated activation: y = silu * (u + offset), where silu = g / (1 + exp(-alpha g)), g
/// is the gate but at most `limit`, and u is the other operand within +-limit.
struct GatedForm {
  double limit = std::numeric_limits<double>::infinity();
  double alpha = 1, offset = 0;
};

/// How split_heads() and join_heads() cut a row: it has `heads` groups of `first` + `second`
/// columns. shared: the second columns are one group for all heads.
struct HeadColumns {
  int64_t heads, first, second;
  bool shared = false;
  int64_t row() const { return heads * (first + second); }
  int64_t row_of_first() const { return heads * first; }
  int64_t row_of_second() const { return shared ? second : heads * second; }
};

/// Sizes of one call of rope: x [tokens, heads * head_dim], where token t has position t % seq. Of
/// each head, the 2 * pairs columns from `first` on are turned: pair j is columns j and pairs + j,
/// or, if interleaved, 2j and 2j + 1. `inverse`: by the negative angles.
struct RopeShape {
  int64_t tokens, seq, heads, head_dim, first, pairs;
  bool interleaved = false, inverse = false;
};
/// What rope_angles computes from: the frequencies of the pairs, and a factor of every result.
struct RopeFrequencies {
  static constexpr int64_t kMost = 256;
  int64_t pairs;
  float scale;
  float at[kMost];
};

/// A matrix to read whose element type, bfloat16 or float32, is known only at run time.
class EitherIn {
 public:
  EitherIn(const Bf16* data) : data(data), wide(false) {}
  EitherIn(const float* data) : data(data), wide(true) {}
  /// The matrix that begins `n` elements later.
  EitherIn operator+(int64_t n) const {
    return wide ? EitherIn(static_cast<const float*>(data) + n)
                : EitherIn(static_cast<const Bf16*>(data) + n);
  }
  const void* data;
  bool wide;  // whether elements are float32
};
/// A matrix to write whose element type, bfloat16 or float32, is known only at run time.
class EitherOut {
 public:
  EitherOut(Bf16* data) : data(data), wide(false) {}
  EitherOut(float* data) : data(data), wide(true) {}
  void* data;
  bool wide;
};

/// The types that belong to T in KernelTable<T> (see the top of this file). MatrixIn and MatrixOut
/// are the types of a GEMM's operands and result.
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

/// What attention reads. A sink [heads] is one more score of each query of the head, without a
/// value; sinks may be null.
template <class T>
struct AttentionIn {
  const T *q, *k, *v;
  const Wide<T>* sinks = nullptr;
};
/// The gradients that attention_dx writes.
template <class T>
struct AttentionOut {
  T *dq, *dk, *dv;
};
/// Returns the blocks of columns of qkv, for a shape with default pitches.
template <class T>
AttentionIn<T> in_qkv(const T* qkv, AttentionShape s) {
  const int64_t hidden = s.heads * s.head_dim;
  return {qkv, qkv + hidden, qkv + 2 * hidden};
}
template <class T>
AttentionOut<T> out_qkv(T* dqkv, AttentionShape s) {
  const int64_t hidden = s.heads * s.head_dim;
  return {dqkv, dqkv + hidden, dqkv + 2 * hidden};
}
/// Whether the shape is that of attention within one qkv: as many heads of k and v as of q, all of
/// one width, the default scale and no window.
inline bool is_plain(AttentionShape s) {
  return s.kv_heads == s.heads && s.value_dim == s.head_dim && s.window == 0 && s.scale == 0 &&
         s.q_pitch == 3 * s.heads * s.head_dim && s.k_pitch == s.q_pitch && s.v_pitch == s.q_pitch;
}

/// How a device runs the products of one gemm_many(); the CPU always runs one after the other.
/// kBatch: one call for all products, for equal sizes and operands at equal distances; where that
/// is not possible, as kStreams. kStreams: at the same time on several streams. In both, a device
/// runs a single product, and products of which any has k = 0, one after the other.
enum class GemmVariant : int32_t { kBatch, kStreams };

/// What is done with a product before it is stored. With s = alpha * op(a) * op(b) + beta * c +
/// bias + add, the result is c = s; if before_gelu is set, *before_gelu = s and c = GELU(s) in its
/// tanh form; if gelu_at is set, c = s * GELU'(gelu_at). All members except bias are [m,n] like c;
/// `add` may be c itself. Requires, if any member is set: beta = 0, ldc = n, a c that no other
/// product writes, and with Bf16 a c in bfloat16. The bias may be rounded to T.
template <class T>
struct Epilogue {
  const Wide<T>* bias = nullptr;  // [n]
  const T* add = nullptr;
  T* before_gelu = nullptr;
  const T* gelu_at = nullptr;
};

/// One product of gemm_many(): c[m,n] = alpha * op(a) * op(b) + beta * c, followed by `then`.
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

  /// "cpu-v4", "cpu-v3", "cpu-v2", "reference"; the GPU's tables have other names.
  const char* name;

  /// c[m,n] = alpha * op(a) * op(b) + beta * c, where op transposes if the flag is set. With Bf16,
  /// float32 operands are first rounded to bfloat16; the sum is in float32.
  void (*gemm)(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, W alpha,
               MatrixIn a, int64_t lda, MatrixIn b, int64_t ldb, W beta, MatrixOut c, int64_t ldc,
               Stream stream);
  /// Computes gemm() and the epilogue for each of `count` products; all epilogues must have the
  /// same members set. Products with the same c must be adjacent and are computed in order; apart
  /// from that, no product may write what another reads or writes. All a must have the same type,
  /// and so must all b and all c. The array `products` is read only during the call.
  void (*gemm_many)(GemmVariant variant, bool transpose_a, bool transpose_b, int64_t count,
                    const Product<T>* products, W alpha, int64_t lda, int64_t ldb, W beta,
                    int64_t ldc, Stream stream);

  /// db[c] = acc[c] + sum over r of dy[r,c], in ascending order of r.
  void (*bias_grad)(W* db, const T* dy, const W* acc, int64_t rows, int64_t cols, Stream);

  /// y[r,:] = (x[r,:] - mean) * rstd * gamma + beta, eps 1e-5, biased variance; mean, rstd [rows].
  void (*layernorm)(T* y, W* mean, W* rstd, const T* x, const W* gamma, const W* beta, int64_t rows,
                    int64_t cols, Stream);
  /// dx [rows,cols] = acc + the gradient of x.
  void (*layernorm_dx)(T* dx, const T* dy, const T* x, const W* mean, const W* rstd, const W* gamma,
                       const T* acc, int64_t rows, int64_t cols, Stream);
  /// dgamma [cols] = acc_gamma + the gradient of gamma; dbeta [cols] = acc_beta + that of beta.
  void (*layernorm_dw)(W* dgamma, W* dbeta, const T* dy, const T* x, const W* mean, const W* rstd,
                       const W* acc_gamma, const W* acc_beta, int64_t rows, int64_t cols, Stream);

  /// y[r,:] = x[r,:] * rstd * gamma with rstd = 1 / sqrt(mean of x[r,:]^2 + eps); rstd [rows].
  void (*rmsnorm)(T* y, W* rstd, const T* x, const W* gamma, W eps, int64_t rows, int64_t cols,
                  Stream);
  /// dx [rows,cols] = acc + the gradient of x.
  void (*rmsnorm_dx)(T* dx, const T* dy, const T* x, const W* rstd, const W* gamma, const T* acc,
                     int64_t rows, int64_t cols, Stream);
  /// dgamma [cols] = acc + the gradient of gamma.
  void (*rmsnorm_dw)(W* dgamma, const T* dy, const T* x, const W* rstd, const W* acc, int64_t rows,
                     int64_t cols, Stream);

  /// y = GELU(x + bias[c]) in its tanh form; bias may be null.
  void (*gelu)(T* y, const T* x, const W* bias, int64_t rows, int64_t cols, Stream);
  /// dx = dy * GELU'(x + bias[c]); dx may be dy.
  void (*gelu_dx)(T* dx, const T* dy, const T* x, const W* bias, int64_t rows, int64_t cols,
                  Stream);

  /// y [rows,cols] from x [rows,2*cols]: the gate in the first `cols` columns of a row of x, the
  /// other operand in the others. Row r is multiplied by weight[r]; a null weight counts as 1.
  void (*silu_mul)(T* y, const T* x, const W* weight, GatedForm form, int64_t rows, int64_t cols,
                   Stream);
  /// dx [rows,2*cols], in the order of x, from dy [rows,cols], and dweight [rows] unless weight is
  /// null. No gradient passes beyond the limit.
  void (*silu_mul_dx)(T* dx, W* dweight, const T* dy, const T* x, const W* weight, GatedForm form,
                      int64_t rows, int64_t cols, Stream);

  /// angles [seq,2*pairs] = the cosines of position * f.at[j] for all pairs j, then the sines, each
  /// times f.scale. All tables compute in float.
  void (*rope_angles)(W* angles, const RopeFrequencies& f, int64_t seq, Stream);
  /// y = x with the columns a, b of each pair turned: a cos - b sin, b cos + a sin; y may be x.
  void (*rope)(T* y, const T* x, const W* angles, const RopeShape& shape, Stream);

  /// y = acc + map(x), as maps.h has it; `factor` is that of kScale.
  void (*map)(T* y, const T* x, Map map, W factor, const T* acc, int64_t n, Stream);
  /// dx = acc + dy * the slope of the function where its value is y; the map must have dx().
  void (*map_dx)(T* dx, const T* dy, const T* y, Map map, const T* acc, int64_t n, Stream);
  /// y [rows,cols] = acc + a * b; b is [rows,cols], or [rows] where `by_row` is set.
  void (*mul)(T* y, const T* a, const T* b, const T* acc, int64_t rows, int64_t cols, bool by_row,
              Stream);
  /// y[r] = dot(a[r,:], b[r,:]).
  void (*row_dot)(T* y, const T* a, const T* b, int64_t rows, int64_t cols, Stream);

  /// Of every head of every row, first = its first columns of x and second = the others; shared
  /// columns are summed over the heads, in their order.
  void (*split_heads)(T* first, T* second, const T* x, HeadColumns columns, int64_t rows, Stream);
  /// The inverse; shared columns are repeated in every head.
  void (*join_heads)(T* x, const T* first, const T* second, HeadColumns columns, int64_t rows,
                     Stream);

  /// x[t,:] = wte[ids[t],:] + wpe[t % seq,:]; wpe may be null. A token of a negative id has no row
  /// of wte: 0 is in its place.
  void (*embedding)(T* x, const int32_t* ids, const W* wte, const W* wpe, int64_t tokens,
                    int64_t seq, int64_t hidden, Stream);
  /// dwte[v,:] = acc[v,:] + sum over t with ids[t] == v of dx[t,:], t ascending; dwte
  /// [vocab,hidden].
  void (*embedding_dwte)(W* dwte, const int32_t* ids, const T* dx, const W* acc, int64_t tokens,
                         int64_t vocab, int64_t hidden, Stream);
  /// dwpe[p,:] = acc[p,:] + sum over sequences b of dx[b*seq+p,:], in ascending order of b.
  void (*embedding_dwpe)(W* dwpe, const T* dx, const W* acc, int64_t tokens, int64_t seq,
                         int64_t hidden, Stream);

  /// Fused causal attention: ctx is [batch,seq,heads*value_dim]; lse [batch,heads,seq] is the
  /// log-sum-exp of scaled scores (and of the sink), kept for the backward. `work`: scratch
  /// (attention_work_bytes).
  void (*attention)(T* ctx, W* lse, AttentionIn<T> in, AttentionShape shape, void* work, Stream);
  /// Computes the gradients of q, k and v from dctx; the probabilities are computed again from
  /// `in` and lse. Those of k and v are summed over the query heads in ascending order.
  void (*attention_dx)(AttentionOut<T> out, const T* dctx, const T* ctx, AttentionIn<T> in,
                       const W* lse, AttentionShape shape, void* work, Stream);
  /// dsinks[h] = acc[h] - sum over sequences b and queries i of exp(sinks[h] - lse[b,h,i]) *
  /// dot(dctx, ctx) of head h of the query.
  void (*attention_dsinks)(W* dsinks, const W* lse, const T* dctx, const T* ctx, const W* sinks,
                           const W* acc, AttentionShape shape, Stream);
  int64_t (*attention_work_bytes)(AttentionShape shape);

  /// The same attention as three ops that store score and prob [batch,heads,seq,seq].
  void (*attn_score)(T* score, const T* qkv, AttentionShape shape, Stream);  // q k^T, not scaled
  void (*attn_softmax)(T* prob, const T* score, AttentionShape shape,
                       Stream);  // scales and masks; 0 above the diagonal
  void (*attn_context)(T* ctx, const T* prob, const T* qkv, AttentionShape shape, Stream);
  /// Writes dprob (sizes of prob) and the v columns of dqkv; leaves the q and k columns unchanged.
  void (*attn_context_dx)(T* dprob, T* dqkv, const T* dctx, const T* prob, const T* qkv,
                          AttentionShape shape, Stream);
  void (*attn_softmax_dx)(T* dscore, const T* dprob, const T* prob, AttentionShape shape, Stream);
  /// Writes the q and k columns of dqkv; leaves the v columns unchanged.
  void (*attn_score_dx)(T* dqkv, const T* dscore, const T* qkv, AttentionShape shape, Stream);

  /// logits[t,e] = bias[e] + sum over i of x[t,i] * w[e,i]; bias may be null. The bits of row t do
  /// not depend on `tokens`.
  void (*gate_logits)(W* logits, const T* x, const W* w, const W* bias, int64_t tokens,
                      int64_t experts, int64_t hidden, Stream);
  /// Scores p [tokens,experts]; p may be logits. A row's bits do not depend on the number of rows.
  void (*gate_scores)(W* p, const W* logits, ScoreRule rule, int64_t tokens, int64_t experts,
                      Stream);
  /// Computes dlogits [tokens,experts] from dweight [tokens,k] by the weight rule. expert
  /// [tokens,k] is -1 for no choice. A dropped choice counts in kRenorm's sum; its dweight is 0.
  void (*gate_dlogits)(W* dlogits, const W* dweight, const W* p, const int32_t* expert,
                       WeightRule weight, ScoreRule score, int64_t tokens, int64_t experts,
                       int64_t k, Stream);

  /// Slot s of `slots` slots has choice slot_choice[s] (= token * k + j for the token's j-th
  /// choice), or -1 if the slot is free. out[s,:] = x[slot_choice[s] / k,:], or 0 for a free slot.
  void (*dispatch)(T* out, const T* x, const int32_t* slot_choice, int64_t slots, int64_t k,
                   int64_t hidden, Stream);
  /// dx[t,:] = acc[t,:] + sum over j of dout[choice_slot[t*k+j],:], in ascending order of j. A
  /// choice without a slot has choice_slot -1 and adds nothing, here and in combine.
  void (*dispatch_dx)(T* dx, const T* dout, const int32_t* choice_slot, const T* acc,
                      int64_t tokens, int64_t k, int64_t hidden, Stream);
  /// y[t,:] = residual[t,:] + sum over j of weight[t,j] * in[choice_slot[t*k+j],:]; residual may
  /// be null.
  void (*combine)(T* y, const T* in, const W* weight, const int32_t* choice_slot, const T* residual,
                  int64_t tokens, int64_t k, int64_t hidden, Stream);
  /// din[s,:] = weight[choice] * dy[choice / k,:] with choice = slot_choice[s], 0 for a free slot.
  void (*combine_dx)(T* din, const T* dy, const W* weight, const int32_t* slot_choice,
                     int64_t slots, int64_t k, int64_t hidden, Stream);
  /// dweight[t,j] = dot(dy[t,:], in[choice_slot[t*k+j],:]), or 0 for a choice without a slot.
  void (*combine_dweight)(W* dweight, const T* dy, const T* in, const int32_t* choice_slot,
                          int64_t tokens, int64_t k, int64_t hidden, Stream);
  /// to[i] = from[at[i]], or 0 where at[i] is -1.
  void (*gather)(W* to, const W* from, const int32_t* at, int64_t n, Stream);

  /// loss[0] (double) = scale * sum over t of -log softmax(logits[t,:])[target[t]]. logits is
  /// [tokens,vocab], with `pitch` elements from row to row. With `gradient`, logits is overwritten
  /// by its gradient, scale * (softmax - onehot), and what lies between two rows by 0. A row with a
  /// negative target has no loss, and the gradient 0.
  void (*cross_entropy)(double* loss, T* logits, const int32_t* target, double scale, bool gradient,
                        int64_t tokens, int64_t vocab, int64_t pitch, Stream);

  /// loss[0] (double) = scale * sum over t, e of load[e] * q[t,e], where q are the scores p
  /// [tokens,experts] computed by `rule`; those of a sigmoid are divided by their sum over e. p is
  /// overwritten by the gradient of the logits; load [experts] is treated as constant. The gradient
  /// of a row does not depend on the number of rows.
  void (*balance_loss)(double* loss, W* p, const W* load, ScoreRule rule, double scale,
                       int64_t tokens, int64_t experts, Stream);
  /// loss[0] (double) = scale * sum over t of log(sum over e of exp(logits[t,e]))^2; logits
  /// [tokens,experts] is overwritten by its gradient.
  void (*z_loss)(double* loss, W* logits, double scale, int64_t tokens, int64_t experts, Stream);

  /// v = momentum * v + g; w = w - lr * v.
  void (*sgd)(W* w, W* v, const W* g, W lr, W momentum, int64_t n, Stream);
  /// With t = *step + 1: m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; w = (1 - lr
  /// decay) w - lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps). `step` is in the memory of
  /// the other operands (CPU or device) and is read when the kernel runs, so that each replay of a
  /// recording of the call can use another step number. Factors that depend on t are in double.
  void (*adamw)(W* w, W* m, W* v, const W* g, const AdamwRates& rates, const int64_t* step,
                int64_t n, Stream);

  /// sums[j] = acc[j] + factor * the sum of x[i]^2 for i / kSquareRun % kSquareSums = j; sums and
  /// acc [kSquareSums].
  void (*square_sums)(W* sums, const W* x, const W* acc, W factor, int64_t n, Stream);
  /// y = x * min(1, limit / (norm + 1e-6)), as PyTorch's clip_grad_norm_, where the square of norm
  /// is the sum of square_sums [kSquareSums].
  void (*clip)(W* y, const W* x, const W* square_sums, W limit, int64_t n, Stream);

  /// y = a + b.
  void (*add)(T* y, const T* a, const T* b, int64_t n, Stream);
  /// y = ((in[0] + in[1]) + in[2]) + ... for every element, in this order.
  void (*sum_n)(T* y, const T* const* in, int64_t count, int64_t n, Stream);
  /// y = x, rounded if T is narrower.
  void (*round)(T* y, const W* x, int64_t n, Stream);
  /// Copies `rows` rows of `width` bytes between arrays with the given distances between rows.
  void (*copy_2d)(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width,
                  int64_t rows, Stream);
  /// Sets every byte to 0.
  void (*clear)(void* to, int64_t bytes, Stream);
  /// Returns the first index of a NaN or infinity in x, or -1.
  int64_t (*first_nonfinite)(const T* x, int64_t n);
};

/// Returns the plain reference in double.
const KernelTable<double>& reference_table();
/// Returns the fast table for the widest instruction set of this machine, or for the one that the
/// environment variable MOEBENCH_ISA names (v2, v3, v4). Throws std::runtime_error if this machine
/// cannot run it or has no OpenBLAS.
const KernelTable<float>& fast_table();
/// Returns every fast table that this machine can run, the one of the narrowest vectors first.
std::vector<const KernelTable<float>*> runnable_tables();
/// Returns what determines the bits and the speed of the CPU kernels:
/// "openblas 0.3.21 SkylakeX, cpu-v4, build 1f2e3d4c".
std::string kernel_set();

/// The table for CPU ranks that compute in T.
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
