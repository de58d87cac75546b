// Fused causal attention, forward (FlashAttention-2, Dao 2023, algorithm 1): the softmax is updated
// over tiles of keys, so no [seq, seq] matrix is stored.
#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

template <class S, class T>
__global__ void attention_kernel(T* ctx, float* lse, AttentionIn<T> in, AttentionShape shape) {
  __shared__ typename S::Rows queries;
  __shared__ typename S::Tile tile;
  __shared__ typename S::Weights weights;
  const Head head(shape, S::kBlockRows, shape.heads);
  const int64_t first = head.first_row + warp() * S::kRows;  // first row of this warp
  float acc[S::kRows][S::kWide] = {}, top[S::kRows], sum[S::kRows];
  for (int r = 0; r < S::kRows; ++r) {
    top[r] = in.sinks ? in.sinks[head.number] : -INFINITY;
    sum[r] = in.sinks ? 1.0f : 0.0f;
  }
  load(queries, in.q + head.q, head.q_pitch, head.first_row, head.head_dim, head);
  for (int64_t key = head.first_key(); key < head.first_row + S::kBlockRows; key += kTile) {
    load(tile, in.k + head.k, head.k_pitch, key, head.head_dim, head);
    float score[S::kRows];
    dots<S>(score, queries, tile);
    for (int r = 0; r < S::kRows; ++r) {
      const bool seen = head.seen(first + r, key + lane());
      const float s = seen ? score[r] * head.scale : -INFINITY;
      const float new_top = max_or_nan(top[r], warp_max(s));
      // Both are -infinity before a row's first finite score; then the difference is from 0.
      const float shrink = top[r] == new_top ? 1.0f : expf(top[r] - new_top);
      const float p = seen ? expf(s - (new_top == -INFINITY ? 0.0f : new_top)) : 0.0f;
      weights[warp() * S::kRows + r][lane()] = p;
      sum[r] = sum[r] * shrink + warp_sum(p);
      for (float& a : acc[r]) a *= shrink;
      top[r] = new_top;
    }
    // The barriers of load() also order the accesses to weights.
    load(tile, in.v + head.v, head.v_pitch, key, head.value_dim, head);
    accumulate<S>(acc, weights, tile, [&](int r, int j) { return head.seen(first + r, key + j); });
  }
  for (int r = 0; r < S::kRows; ++r) {
    if (first + r >= head.seq) continue;
    store_row<S>(ctx + head.ctx + (first + r) * head.ctx_pitch, acc[r], 1 / sum[r], head.value_dim);
    if (lane() == 0) lse[head.lse + first + r] = top[r] + logf(sum[r]);
  }
}

}  // namespace

template <class T>
void attention(T* ctx, float* lse, AttentionIn<T> in, AttentionShape shape, void*, Stream stream) {
  with_sizes(shape, [&](auto sizes) {
    using S = decltype(sizes);
    launch(attention_kernel<S, T>, attention_blocks<S>(shape, shape.heads), kThreads, stream, ctx,
           lse, in, shape);
  });
}
template void attention(float*, float*, AttentionIn<float>, AttentionShape, void*, Stream);
template void attention(Bf16*, float*, AttentionIn<Bf16>, AttentionShape, void*, Stream);

}  // namespace moe::kernels::cuda
