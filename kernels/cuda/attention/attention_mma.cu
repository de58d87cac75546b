// Fused causal attention of bfloat16 on tensor cores, forward (FlashAttention-2, Dao 2023,
// algorithm 1). A block owns queries and goes through tiles of keys and values up to the diagonal.
// The probabilities are rounded to bfloat16 and passed in registers to the product with v; each row
// of that product is divided by the sum of its probabilities before rounding.
#include "kernels/cuda/attention/attention_mma_tile.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

/// For each row: the largest score so far, not scaled, and this thread's part of the sum of
/// exp(scaled score - largest).
template <class S>
struct Softmax {
  __device__ Softmax() {
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        top[g][half] = -INFINITY;
        sum[g][half] = 0;
      }
  }
  typename S::RowValues top, sum;
};

/// Combines v over the four lanes that hold a row; all four get the same result.
template <class Join>
__device__ inline float over_row(float v, Join join) {
  v = join(v, __shfl_xor_sync(kAllLanes, v, 1));
  return join(v, __shfl_xor_sync(kAllLanes, v, 2));
}

/// Replaces scores by probabilities that are not yet divided by their sum, and rescales the sums so
/// far to the new largest score. factor = scale * log2(e). A NaN score does not become the largest
/// score, but its probability is a NaN, and so is the sum. Where all scores so far are -infinity, 0
/// is used as the largest, so that differences are not NaN.
template <class S>
__device__ inline void advance(Softmax<S>& softmax, typename S::Scores& scores,
                               typename S::Sums& sums, float factor) {
  typename S::RowValues top, shrink;
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g)
#pragma unroll
    for (int half = 0; half < 2; ++half) top[g][half] = softmax.top[g][half];
  each_score<S>([&](int g, int j, int i, int, int) {
    top[g][i / 2] = fmaxf(top[g][i / 2], scores[g][j][i]);
  });
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float now = over_row(top[g][half], [](float a, float b) { return fmaxf(a, b); });
      top[g][half] = now == -INFINITY ? 0 : now * factor;
      shrink[g][half] = fast_exp2(softmax.top[g][half] * factor - top[g][half]);
      softmax.top[g][half] = now;
      softmax.sum[g][half] *= shrink[g][half];
    }
  each_score<S>([&](int g, int j, int i, int, int) {
    const float p = fast_exp2(scores[g][j][i] * factor - top[g][i / 2]);
    scores[g][j][i] = p;
    softmax.sum[g][i / 2] += p;
  });
  scale_rows<S>(sums, [&](int g, int half) { return shrink[g][half]; });
}

/// Divides the weighted sums of values by the sums of the probabilities, and writes lse.
template <class S>
__device__ inline void finish(Softmax<S>& softmax, typename S::Sums& sums, float* lse, int first,
                              const MmaHead& head) {
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& sum = softmax.sum[g][half];
      sum = over_row(sum, [](float a, float b) { return a + b; });
      const int row = first + g * kSide + half * 8 + lane() / 4;
      if (lane() % 4 == 0 && row < head.seq)
        lse[head.lse + row] = softmax.top[g][half] * head.scale + logf(sum);
    }
  scale_rows<S>(sums, [&](int g, int half) { return 1 / softmax.sum[g][half]; });
}

template <class S>
__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_mma_kernel(Bf16* ctx, float* lse, const Bf16* qkv, AttentionShape shape,
                         bool in_vectors) {
  const MmaHead head(shape, S::kBlockRows, true, in_vectors);
  constexpr int kQueries = 0;
  // Two pairs of tiles of keys and values, used in turn.
  constexpr int kTiles = kQueries + S::kOwnTile;
  const auto load = [&](int key) {
    const int tile = kTiles + key / S::kPassing % 2 * 2 * S::kTile;
    start_load<S::kPassing, S::kColumns>(tile, qkv_rows(qkv, 1, head), key, head);
    start_load<S::kPassing, S::kColumns>(tile + S::kTile, qkv_rows(qkv, 2, head), key, head);
  };
  const int first = head.first_row + warp() * S::kWarpRows;  // first row of this warp
  const int end = head.end(S::kBlockRows);
  Softmax<S> softmax;
  typename S::Sums sums = {};
  start_load<S::kBlockRows, S::kColumns>(kQueries, qkv_rows(qkv, 0, head), head.first_row, head);
  load(0);
  for (int key = 0; key < end; key += S::kPassing) {
    finish_copies();
    __syncthreads();  // the tile is complete, and no warp still reads the tile before
    if (key + S::kPassing < end) load(key + S::kPassing);
    if (key >= first + S::kWarpRows) continue;  // the mask hides the tile from all rows of the warp
    const int tile = kTiles + key / S::kPassing % 2 * 2 * S::kTile;
    typename S::Scores scores = {};
    add_products<S>(scores, kQueries, tile);
    if (key + S::kPassing > first + 1)  // the tile is on the diagonal
      each_score<S>([&](int g, int j, int i, int row, int column) {
        if (key + column > first + row) scores[g][j][i] = -INFINITY;
      });
    advance<S>(softmax, scores, sums, head.scale * kLog2E);
    add_weighted<S>(sums, scores, tile + S::kTile);
  }
  finish<S>(softmax, sums, lse, first, head);
  store_rows<S>(ctx_rows(ctx, head), sums, kQueries, head);
}

template <class S>
void forward(Bf16* ctx, float* lse, const Bf16* qkv, AttentionShape s, Stream stream) {
  launch_mma<S>(S::kOwnTile + 4 * S::kTile, attention_mma_kernel<S>, s, stream, ctx, lse, qkv, s,
                in_chunks(s, ctx, qkv));
}

}  // namespace

void attention_mma(Bf16* ctx, float* lse, const Bf16* qkv, AttentionShape s, Stream stream) {
  if (s.head_dim <= 32) return forward<MmaSizes<32, 2, 64>>(ctx, lse, qkv, s, stream);
  if (s.head_dim <= 64) return forward<MmaSizes<64, 2, 64>>(ctx, lse, qkv, s, stream);
  if (s.head_dim <= 96) return forward<MmaSizes<96, 2, 32>>(ctx, lse, qkv, s, stream);
  forward<MmaSizes<128, 2, 32>>(ctx, lse, qkv, s, stream);
}

}  // namespace moe::kernels::cuda
