// Attention as separate ops over [batch, heads, seq, seq]: a strided GEMM per head, a softmax per
// row.
#include "kernels/cpu/fast.h"
#include "kernels/cpu/fast_simd.h"

namespace moe::kernels::MOE_ISA {
namespace {

/// Offsets of one head in qkv, in ctx, and in the [batch, heads, seq, seq] arrays.
struct Head {
  int64_t qkv, ctx, score;
};

template <class F>
MOE_INLINE void each_head(AttentionShape s, F f) {
  const int64_t hidden = s.heads * s.head_dim;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t ctx = b * s.seq * hidden + h * s.head_dim;
      f(Head{ctx + 2 * b * s.seq * hidden, ctx, (b * s.heads + h) * s.seq * s.seq});
    }
}

/// c [m,n] = op(a) [m,k] * op(b) [k,n], where op transposes if the flag is set.
void product(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
             int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc) {
  gemm(transpose_a, transpose_b, m, n, k, 1.0f, a, lda, b, ldb, 0.0f, c, ldc, nullptr);
}

float attention_scale(AttentionShape s) {
  return 1.0f / __builtin_sqrtf(static_cast<float>(s.head_dim));
}

void attn_score(float* score, const float* qkv, AttentionShape s, Stream) {
  const int64_t hidden = s.heads * s.head_dim;
  each_head(s, [&](Head at) {
    const float* q = qkv + at.qkv;
    product(false, true, s.seq, s.seq, s.head_dim, q, 3 * hidden, q + hidden, 3 * hidden,
            score + at.score, s.seq);
  });
}

void softmax_row(float* p, const float* score, float scale, int64_t count, int64_t cols) {
  const float top = max_of(count, [&](int64_t i, auto lanes) {
    return keep(scale * load(score + i, lanes), lanes, -__builtin_inff());
  });
  const float sum = sum_of(count, [&](int64_t i, auto lanes) {
    const Vec e = keep(exp(scale * load(score + i, lanes) - top), lanes, 0.0f);
    store(p + i, e, lanes);
    return e;
  });
  const float inverse = 1.0f / sum;
  each_vec(count,
           [&](int64_t i, auto lanes) { store(p + i, load(p + i, lanes) * inverse, lanes); });
  each_vec(cols - count, [&](int64_t i, auto lanes) { store(p + count + i, Vec{}, lanes); });
}

void attn_softmax(float* prob, const float* score, AttentionShape s, Stream) {
  for (int64_t row = 0; row < s.batch * s.heads * s.seq; ++row)
    softmax_row(prob + row * s.seq, score + row * s.seq, attention_scale(s), row % s.seq + 1,
                s.seq);
}

void attn_context(float* ctx, const float* prob, const float* qkv, AttentionShape s, Stream) {
  const int64_t hidden = s.heads * s.head_dim;
  each_head(s, [&](Head at) {
    product(false, false, s.seq, s.head_dim, s.seq, prob + at.score, s.seq,
            qkv + at.qkv + 2 * hidden, 3 * hidden, ctx + at.ctx, hidden);
  });
}

void attn_context_dx(float* dprob, float* dqkv, const float* dctx, const float* prob,
                     const float* qkv, AttentionShape s, Stream) {
  const int64_t hidden = s.heads * s.head_dim;
  each_head(s, [&](Head at) {
    const int64_t v = at.qkv + 2 * hidden;
    product(false, true, s.seq, s.seq, s.head_dim, dctx + at.ctx, hidden, qkv + v, 3 * hidden,
            dprob + at.score, s.seq);
    product(true, false, s.seq, s.head_dim, s.seq, prob + at.score, s.seq, dctx + at.ctx, hidden,
            dqkv + v, 3 * hidden);
  });
}

void attn_softmax_dx(float* dscore, const float* dprob, const float* prob, AttentionShape s,
                     Stream) {
  const float scale = attention_scale(s);
  for (int64_t row = 0; row < s.batch * s.heads * s.seq; ++row) {
    const int64_t count = row % s.seq + 1;
    const float *dp = dprob + row * s.seq, *p = prob + row * s.seq;
    float* to = dscore + row * s.seq;
    const float dot = sum_of(
        count, [&](int64_t i, auto lanes) { return load(dp + i, lanes) * load(p + i, lanes); });
    each_vec(count, [&](int64_t i, auto lanes) {
      store(to + i, scale * load(p + i, lanes) * (load(dp + i, lanes) - dot), lanes);
    });
    each_vec(s.seq - count, [&](int64_t i, auto lanes) { store(to + count + i, Vec{}, lanes); });
  }
}

void attn_score_dx(float* dqkv, const float* dscore, const float* qkv, AttentionShape s, Stream) {
  const int64_t hidden = s.heads * s.head_dim;
  each_head(s, [&](Head at) {
    const float* d = dscore + at.score;
    const int64_t q = at.qkv, k = q + hidden;
    product(false, false, s.seq, s.head_dim, s.seq, d, s.seq, qkv + k, 3 * hidden, dqkv + q,
            3 * hidden);
    product(true, false, s.seq, s.head_dim, s.seq, d, s.seq, qkv + q, 3 * hidden, dqkv + k,
            3 * hidden);
  });
}

}  // namespace

void set_attention_steps(KernelTable<float>& table) noexcept {
  table.attn_score = attn_score;
  table.attn_softmax = attn_softmax;
  table.attn_context = attn_context;
  table.attn_context_dx = attn_context_dx;
  table.attn_softmax_dx = attn_softmax_dx;
  table.attn_score_dx = attn_score_dx;
}

}  // namespace moe::kernels::MOE_ISA
