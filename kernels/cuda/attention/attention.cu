// Fused causal attention, forward (FlashAttention-2, Dao 2023, algorithm 1): the softmax is updated
// over tiles of keys, so no [seq, seq] matrix is stored.
#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

template <class S>
__global__ void attention_kernel(float* ctx, float* lse, const float* qkv, AttentionShape shape) {
  __shared__ typename S::Rows queries;
  __shared__ typename S::Tile tile;
  __shared__ typename S::Weights weights;
  const Head head(shape, S::kBlockRows);
  const int64_t first = head.first_row + warp() * S::kRows;  // first row of this warp
  float acc[S::kRows][S::kWide] = {}, top[S::kRows], sum[S::kRows] = {};
  for (float& t : top) t = -INFINITY;
  load(queries, qkv + head.qkv_row(0, 0), 3 * head.hidden, head.first_row, head);
  // Since kBlockRows divides kTile, each row of the block attends to a key in each tile.
  for (int64_t key = 0; key < head.first_row + S::kBlockRows; key += kTile) {
    load(tile, qkv + head.qkv_row(1, 0), 3 * head.hidden, key, head);
    float score[S::kRows];
    dots<S>(score, queries, tile);
    for (int r = 0; r < S::kRows; ++r) {
      const bool seen = key + lane() <= first + r;
      const float s = seen ? score[r] * head.scale : -INFINITY;
      const float new_top = max_or_nan(top[r], warp_max(s));
      const float p = seen ? expf(s - new_top) : 0.0f, shrink = expf(top[r] - new_top);
      weights[warp() * S::kRows + r][lane()] = p;
      sum[r] = sum[r] * shrink + warp_sum(p);
      for (float& a : acc[r]) a *= shrink;
      top[r] = new_top;
    }
    // The barriers of load() also order the accesses to weights.
    load(tile, qkv + head.qkv_row(2, 0), 3 * head.hidden, key, head);
    accumulate<S>(acc, weights, tile, [&](int r, int j) { return key + j <= first + r; });
  }
  for (int r = 0; r < S::kRows; ++r) {
    if (first + r >= head.seq) continue;
    store<S>(ctx + head.ctx + (first + r) * head.hidden, acc[r], 1 / sum[r], head.head_dim);
    if (lane() == 0) lse[head.lse + first + r] = top[r] + logf(sum[r]);
  }
}

}  // namespace

void attention(float* ctx, float* lse, const float* qkv, AttentionShape shape, void*,
               Stream stream) {
  with_sizes(shape, [&](auto sizes) {
    using S = decltype(sizes);
    launch(attention_kernel<S>, attention_blocks<S>(shape), kThreads, stream, ctx, lse, qkv, shape);
  });
}

}  // namespace moe::kernels::cuda
