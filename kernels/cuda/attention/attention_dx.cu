// The gradient of fused attention (FlashAttention-2, Dao 2023, algorithm 2). Two kernels replace
// atomic additions: one owns the rows of dq, the other those of dk and dv. Both compute the
// probabilities again. work: delta [batch, heads, seq], where delta = dot(dctx, ctx) for each row.
#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

__global__ void delta_kernel(float* delta, const float* dctx, const float* ctx,
                             AttentionShape shape) {
  const int64_t row = warp_number();                         // (b * heads + h) * seq + i
  if (row >= shape.batch * shape.heads * shape.seq) return;  // the whole warp returns
  const int64_t head = row / shape.seq, i = row % shape.seq;
  const int64_t first =
      ((head / shape.heads * shape.seq + i) * shape.heads + head % shape.heads) * shape.head_dim;
  float sum = 0;
  for (int64_t c = lane(); c < shape.head_dim; c += kWarp) sum += dctx[first + c] * ctx[first + c];
  sum = warp_sum(sum);
  if (lane() == 0) delta[row] = sum;
}

template <class S>
__global__ void dq_kernel(float* dqkv, const float* dctx, const float* qkv, const float* lse,
                          const float* delta, AttentionShape shape) {
  __shared__ typename S::Rows queries, grads;
  __shared__ typename S::Tile tile;
  __shared__ typename S::Weights weights;
  const Head head(shape, S::kBlockRows);
  const int64_t first = head.first_row + warp() * S::kRows;
  float acc[S::kRows][S::kWide] = {};
  load(queries, qkv + head.qkv_row(0, 0), 3 * head.hidden, head.first_row, head);
  load(grads, dctx + head.ctx, head.hidden, head.first_row, head);
  for (int64_t key = 0; key < head.first_row + S::kBlockRows; key += kTile) {
    float score[S::kRows], dprob[S::kRows];
    load(tile, qkv + head.qkv_row(2, 0), 3 * head.hidden, key, head);
    dots<S>(dprob, grads, tile);
    load(tile, qkv + head.qkv_row(1, 0), 3 * head.hidden, key, head);
    dots<S>(score, queries, tile);
    for (int r = 0; r < S::kRows; ++r) {
      const int64_t query = first + r;
      float dscore = 0;
      if (key + lane() <= query && query < head.seq) {
        const float p = expf(score[r] * head.scale - lse[head.lse + query]);
        dscore = p * (dprob[r] - delta[head.lse + query]) * head.scale;
      }
      weights[warp() * S::kRows + r][lane()] = dscore;
    }
    __syncwarp();  // each warp reads only its own weights
    accumulate<S>(acc, weights, tile, [&](int r, int j) { return key + j <= first + r; });
  }
  for (int r = 0; r < S::kRows; ++r)
    if (first + r < head.seq) store<S>(dqkv + head.qkv_row(0, first + r), acc[r], 1, head.head_dim);
}

template <class S>
__global__ void dkv_kernel(float* dqkv, const float* dctx, const float* qkv, const float* lse,
                           const float* delta, AttentionShape shape) {
  __shared__ typename S::Rows keys, values;
  __shared__ typename S::Tile tile;
  __shared__ typename S::Weights weights;
  const Head head(shape, S::kBlockRows);
  const int64_t first = head.first_row + warp() * S::kRows;
  float dk[S::kRows][S::kWide] = {}, dv[S::kRows][S::kWide] = {};
  load(keys, qkv + head.qkv_row(1, 0), 3 * head.hidden, head.first_row, head);
  load(values, qkv + head.qkv_row(2, 0), 3 * head.hidden, head.first_row, head);
  for (int64_t query = head.first_row / kTile * kTile; query < head.seq; query += kTile) {
    const int64_t mine = query + lane();
    const auto seen = [&](int r, int j) { return first + r <= query + j && query + j < head.seq; };
    const float my_lse = mine < head.seq ? lse[head.lse + mine] : 0;
    const float my_delta = mine < head.seq ? delta[head.lse + mine] : 0;
    float p[S::kRows], dprob[S::kRows];
    load(tile, qkv + head.qkv_row(0, 0), 3 * head.hidden, query, head);
    dots<S>(p, keys, tile);
    for (int r = 0; r < S::kRows; ++r) {
      p[r] = seen(r, lane()) ? expf(p[r] * head.scale - my_lse) : 0.0f;
      weights[warp() * S::kRows + r][lane()] = p[r];
    }
    load(tile, dctx + head.ctx, head.hidden, query, head);
    dots<S>(dprob, values, tile);
    accumulate<S>(dv, weights, tile, seen);
    __syncwarp();  // all lanes have read the probabilities before they are overwritten
    for (int r = 0; r < S::kRows; ++r)
      weights[warp() * S::kRows + r][lane()] =
          seen(r, lane()) ? p[r] * (dprob[r] - my_delta) * head.scale : 0.0f;
    load(tile, qkv + head.qkv_row(0, 0), 3 * head.hidden, query, head);
    accumulate<S>(dk, weights, tile, seen);
  }
  for (int r = 0; r < S::kRows; ++r) {
    if (first + r >= head.seq) continue;
    store<S>(dqkv + head.qkv_row(1, first + r), dk[r], 1, head.head_dim);
    store<S>(dqkv + head.qkv_row(2, first + r), dv[r], 1, head.head_dim);
  }
}

}  // namespace

int64_t attention_work_bytes(AttentionShape s) {
  return s.batch * s.heads * s.seq * static_cast<int64_t>(sizeof(float));
}

void attention_dx(float* dqkv, const float* dctx, const float* ctx, const float* qkv,
                  const float* lse, AttentionShape shape, void* work, Stream stream) {
  auto* delta = static_cast<float*>(work);
  with_sizes(shape, [&](auto sizes) {
    using S = decltype(sizes);
    launch(delta_kernel, blocks_of(shape.batch * shape.heads * shape.seq, kWarps), kThreads, stream,
           delta, dctx, ctx, shape);
    for (const auto kernel : {dq_kernel<S>, dkv_kernel<S>})
      launch(kernel, attention_blocks<S>(shape), kThreads, stream, dqkv, dctx, qkv, lse, delta,
             shape);
  });
}

}  // namespace moe::kernels::cuda
