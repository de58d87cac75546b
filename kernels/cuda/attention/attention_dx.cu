// The gradient of fused attention (FlashAttention-2, Dao 2023, algorithm 2). Two kernels replace
// atomic additions: one owns the rows of dq, the other those of dk and dv. Both compute the
// probabilities again. work: delta [batch, heads, seq], where delta = dot(dctx, ctx) for each row.
#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

template <class T>
__global__ void delta_kernel(float* delta, const T* dctx, const T* ctx, AttentionShape shape) {
  const int64_t row = warp_number();                         // (b * heads + h) * seq + i
  if (row >= shape.batch * shape.heads * shape.seq) return;  // the whole warp returns
  const int64_t head = row / shape.seq, i = row % shape.seq;
  const int64_t first =
      ((head / shape.heads * shape.seq + i) * shape.heads + head % shape.heads) * shape.value_dim;
  float sum = 0;
  for (int64_t c = first + lane(); c < first + shape.value_dim; c += kWarp)
    sum += load<1>(dctx + c).at[0] * load<1>(ctx + c).at[0];
  sum = warp_sum(sum);
  if (lane() == 0) delta[row] = sum;
}

template <class S, class T>
__global__ void dq_kernel(T* dq, const T* dctx, AttentionIn<T> in, const float* lse,
                          const float* delta, AttentionShape shape) {
  __shared__ typename S::Rows queries, grads;
  __shared__ typename S::Tile tile;
  __shared__ typename S::Weights weights;
  const Head head(shape, S::kBlockRows, shape.heads);
  const int64_t first = head.first_row + warp() * S::kRows;
  float acc[S::kRows][S::kWide] = {};
  load(queries, in.q + head.q, head.q_pitch, head.first_row, head.head_dim, head);
  load(grads, dctx + head.ctx, head.ctx_pitch, head.first_row, head.value_dim, head);
  for (int64_t key = head.first_key(); key < head.first_row + S::kBlockRows; key += kTile) {
    const auto seen = [&](int r, int j) { return head.seen(first + r, key + j); };
    float score[S::kRows], dprob[S::kRows];
    load(tile, in.v + head.v, head.v_pitch, key, head.value_dim, head);
    dots<S>(dprob, grads, tile);
    load(tile, in.k + head.k, head.k_pitch, key, head.head_dim, head);
    dots<S>(score, queries, tile);
    for (int r = 0; r < S::kRows; ++r) {
      const int64_t query = first + r;
      float dscore = 0;
      if (seen(r, lane()) && query < head.seq) {
        const float p = expf(score[r] * head.scale - lse[head.lse + query]);
        dscore = p * (dprob[r] - delta[head.lse + query]) * head.scale;
      }
      weights[warp() * S::kRows + r][lane()] = dscore;
    }
    __syncwarp();  // each warp reads only its own weights
    accumulate<S>(acc, weights, tile, seen);
  }
  for (int r = 0; r < S::kRows; ++r)
    if (first + r < head.seq)
      store_row<S>(dq + head.q + (first + r) * head.q_pitch, acc[r], 1, head.head_dim);
}

/// A block owns rows of one head of k and v, and goes through all query heads that read it.
template <class S, class T>
__global__ void dkv_kernel(T* dk, T* dv, const T* dctx, AttentionIn<T> in, const float* lse,
                           const float* delta, AttentionShape shape) {
  __shared__ typename S::Rows keys, values;
  __shared__ typename S::Tile tile;
  __shared__ typename S::Weights weights;
  Head head(shape, S::kBlockRows, shape.kv_heads);
  const int64_t first = head.first_row + warp() * S::kRows;
  const int64_t seen_until = head.first_row + S::kBlockRows - 1 + head.window;
  float dk_sum[S::kRows][S::kWide] = {}, dv_sum[S::kRows][S::kWide] = {};
  load(keys, in.k + head.k, head.k_pitch, head.first_row, head.head_dim, head);
  load(values, in.v + head.v, head.v_pitch, head.first_row, head.value_dim, head);
  for (int64_t h = 0; h < shape.heads / shape.kv_heads; ++h, head.next()) {
    for (int64_t query = head.first_row / kTile * kTile; query < head.seq && query < seen_until;
         query += kTile) {
      const int64_t mine = query + lane();
      const auto seen = [&](int r, int j) {
        return head.seen(query + j, first + r) && query + j < head.seq;
      };
      const float my_lse = mine < head.seq ? lse[head.lse + mine] : 0;
      const float my_delta = mine < head.seq ? delta[head.lse + mine] : 0;
      float p[S::kRows], dprob[S::kRows];
      load(tile, in.q + head.q, head.q_pitch, query, head.head_dim, head);
      dots<S>(p, keys, tile);
      for (int r = 0; r < S::kRows; ++r) {
        p[r] = seen(r, lane()) ? expf(p[r] * head.scale - my_lse) : 0.0f;
        weights[warp() * S::kRows + r][lane()] = p[r];
      }
      load(tile, dctx + head.ctx, head.ctx_pitch, query, head.value_dim, head);
      dots<S>(dprob, values, tile);
      accumulate<S>(dv_sum, weights, tile, seen);
      __syncwarp();  // all lanes have read the probabilities before they are overwritten
      for (int r = 0; r < S::kRows; ++r)
        weights[warp() * S::kRows + r][lane()] =
            seen(r, lane()) ? p[r] * (dprob[r] - my_delta) * head.scale : 0.0f;
      load(tile, in.q + head.q, head.q_pitch, query, head.head_dim, head);
      accumulate<S>(dk_sum, weights, tile, seen);
    }
  }
  for (int r = 0; r < S::kRows; ++r) {
    if (first + r >= head.seq) continue;
    store_row<S>(dk + head.k + (first + r) * head.k_pitch, dk_sum[r], 1, head.head_dim);
    store_row<S>(dv + head.v + (first + r) * head.v_pitch, dv_sum[r], 1, head.value_dim);
  }
}

/// One block per head.
template <class T>
__global__ void dsinks_kernel(float* dsinks, const float* lse, const T* dctx, const T* ctx,
                              const float* sinks, const float* acc, AttentionShape shape) {
  __shared__ float shared[kWarps];
  const int64_t h = blockIdx.x;
  float sum = 0;
  for (int64_t row = warp(); row < shape.batch * shape.seq; row += kWarps) {
    const int64_t first = (row * shape.heads + h) * shape.value_dim;
    const int64_t head = row / shape.seq * shape.heads + h;
    float dot = 0;
    for (int64_t c = first + lane(); c < first + shape.value_dim; c += kWarp)
      dot += load<1>(dctx + c).at[0] * load<1>(ctx + c).at[0];
    sum += expf(sinks[h] - lse[head * shape.seq + row % shape.seq]) * dot;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) dsinks[h] = (acc ? acc[h] : 0.0f) - sum;
}

}  // namespace

int64_t attention_work_bytes(AttentionShape s) {
  return s.batch * s.heads * s.seq * static_cast<int64_t>(sizeof(float));
}

template <class T>
void attention_dx(AttentionOut<T> out, const T* dctx, const T* ctx, AttentionIn<T> in,
                  const float* lse, AttentionShape shape, void* work, Stream stream) {
  auto* delta = static_cast<float*>(work);
  with_sizes(shape, [&](auto sizes) {
    using S = decltype(sizes);
    launch(delta_kernel<T>, blocks_of(shape.batch * shape.heads * shape.seq, kWarps), kThreads,
           stream, delta, dctx, ctx, shape);
    launch(dq_kernel<S, T>, attention_blocks<S>(shape, shape.heads), kThreads, stream, out.dq, dctx,
           in, lse, delta, shape);
    launch(dkv_kernel<S, T>, attention_blocks<S>(shape, shape.kv_heads), kThreads, stream, out.dk,
           out.dv, dctx, in, lse, delta, shape);
  });
}
template void attention_dx(AttentionOut<float>, const float*, const float*, AttentionIn<float>,
                           const float*, AttentionShape, void*, Stream);
template void attention_dx(AttentionOut<Bf16>, const Bf16*, const Bf16*, AttentionIn<Bf16>,
                           const float*, AttentionShape, void*, Stream);

template <class T>
void attention_dsinks(float* dsinks, const float* lse, const T* dctx, const T* ctx,
                      const float* sinks, const float* acc, AttentionShape shape, Stream stream) {
  launch(dsinks_kernel<T>, shape.heads, kThreads, stream, dsinks, lse, dctx, ctx, sinks, acc,
         shape);
}
template void attention_dsinks(float*, const float*, const float*, const float*, const float*,
                               const float*, AttentionShape, Stream);
template void attention_dsinks(float*, const float*, const Bf16*, const Bf16*, const float*,
                               const float*, AttentionShape, Stream);

}  // namespace moe::kernels::cuda
