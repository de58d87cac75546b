// The gradient of fused attention of bfloat16 on tensor cores (FlashAttention-2, Dao 2023,
// algorithm 2). Two kernels replace atomic additions: one owns rows of k and v, the other rows of
// q. Both compute the probabilities again from lse. Probabilities and gradients of scores are
// rounded to bfloat16 for the products that sum them; the sums are float32. work: delta [batch,
// heads, seq], where delta = dot(dctx, ctx) for each row.
#include "kernels/cuda/attention/attention_mma_tile.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

/// Number of lanes that share a row of up to 128 columns, with 8 columns each.
constexpr int kRowLanes = 16, kRowsAWarp = kWarp / kRowLanes;

/// Returns the dot product of the two bfloat16 in `a` with the two in `b`.
__device__ inline float pair_dot(unsigned a, unsigned b) {
  const auto half = [](unsigned word, int index) {
    return widened({static_cast<uint16_t>(word >> 16 * index)});
  };
  return half(a, 0) * half(b, 0) + half(a, 1) * half(b, 1);
}

__global__ void delta_mma_kernel(float* delta, const Bf16* dctx, const Bf16* ctx,
                                 AttentionShape shape, bool in_vectors) {
  // The index of a row of ctx in memory: (b * seq + i) * heads + h.
  const int64_t rows = shape.batch * shape.seq * shape.heads;
  const int64_t row = warp_number() * kRowsAWarp + lane() / kRowLanes;
  const int64_t first = row * shape.head_dim;
  const int column = lane() % kRowLanes * 8;
  const int count = row < rows ? static_cast<int>(shape.head_dim) - column : 0;
  float sum = 0;
  if (in_vectors && count > 0) {
    const uint4 a = *reinterpret_cast<const uint4*>(dctx + first + column);
    const uint4 b = *reinterpret_cast<const uint4*>(ctx + first + column);
    sum = pair_dot(a.x, b.x) + pair_dot(a.y, b.y) + pair_dot(a.z, b.z) + pair_dot(a.w, b.w);
  } else {
    for (int c = 0; c < 8 && c < count; ++c)
      sum += widened(dctx[first + column + c]) * widened(ctx[first + column + c]);
  }
  for (int step = kRowLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (row >= rows || lane() % kRowLanes != 0) return;
  const int64_t h = row % shape.heads, i = row / shape.heads % shape.seq;
  const int64_t b_h = row / (shape.heads * shape.seq) * shape.heads + h;
  delta[b_h * shape.seq + i] = sum;
}

/// Loads a thread's values of its rows from a [batch, heads, seq] array; 0 beyond the sequence.
template <class S>
__device__ inline void load_values(typename S::RowValues& values, const float* all, int first,
                                   const MmaHead& head) {
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + g * kSide + half * 8 + lane() / 4;
      values[g][half] = row < head.seq ? all[head.lse + row] : 0;
    }
}

/// The block owns rows of queries; the tiles are keys and values.
template <class S>
__global__ void __launch_bounds__(kMmaThreads, 2)
    dq_mma_kernel(Bf16* dqkv, const Bf16* dctx, const Bf16* qkv, const float* lse,
                  const float* delta, AttentionShape shape, bool in_vectors) {
  const MmaHead head(shape, S::kBlockRows, true, in_vectors);
  constexpr int kQueries = 0;
  constexpr int kGrads = kQueries + S::kOwnTile;
  // Two pairs of tiles of keys and values, used in turn.
  constexpr int kTiles = kGrads + S::kOwnTile;
  const auto load = [&](int key) {
    const int tile = kTiles + key / S::kPassing % 2 * 2 * S::kTile;
    start_load<S::kPassing, S::kColumns>(tile, qkv_rows(qkv, 1, head), key, head);
    start_load<S::kPassing, S::kColumns>(tile + S::kTile, qkv_rows(qkv, 2, head), key, head);
  };
  const int first = head.first_row + warp() * S::kWarpRows;
  const int end = head.end(S::kBlockRows);
  const float factor = head.scale * kLog2E;
  typename S::Sums sums = {};
  start_load<S::kBlockRows, S::kColumns>(kQueries, qkv_rows(qkv, 0, head), head.first_row, head);
  start_load<S::kBlockRows, S::kColumns>(kGrads, ctx_rows(dctx, head), head.first_row, head);
  load(0);
  for (int key = 0; key < end; key += S::kPassing) {
    finish_copies();
    __syncthreads();  // the tile is complete, and no warp still reads the tile before
    if (key + S::kPassing < end) load(key + S::kPassing);
    if (key >= first + S::kWarpRows) continue;  // the mask hides the tile from all rows of the warp
    const int tile = kTiles + key / S::kPassing % 2 * 2 * S::kTile;
    typename S::Scores scores = {}, dscores;
    // delta and lse are loaded again for each tile, since keeping them needs too many registers.
    typename S::RowValues values;
    load_values<S>(values, delta, first, head);
    each_score<S>([&](int g, int j, int i, int, int) { dscores[g][j][i] = -values[g][i / 2]; });
    add_products<S>(scores, kQueries, tile);
    add_products<S>(dscores, kGrads, tile + S::kTile);
    load_values<S>(values, lse, first, head);
    each_score<S>([&](int g, int j, int i, int, int) {
      dscores[g][j][i] *= fast_exp2(scores[g][j][i] * factor - values[g][i / 2] * kLog2E);
    });
    if (key + S::kPassing > first + 1)  // the tile is on the diagonal
      each_score<S>([&](int g, int j, int i, int row, int column) {
        if (key + column > first + row) dscores[g][j][i] = 0;
      });
    add_weighted<S>(sums, dscores, tile);
  }
  scale_rows<S>(sums, [&](int, int) { return head.scale; });
  store_rows<S>(qkv_rows(dqkv, 0, head), sums, kQueries, head);
}

/// Adds to dk and dv what a tile of queries contributes; the tile begins at row `query`.
template <class S>
__device__ inline void add_queries(typename S::Sums& dk, typename S::Sums& dv, int own, int tile,
                                   const float* values, int query, int first, const MmaHead& head) {
  const float factor = head.scale * kLog2E;
  const float *const lse = values, *const delta = values + S::kPassing;
  // Masked elements are set to 0, and not multiplied by 0, since a key may be infinite.
  const bool masked = first + S::kWarpRows > query + 1 || query + S::kPassing > head.seq;
  const auto hide = [&](typename S::Scores& all) {
    if (!masked) return;
    each_score<S>([&](int g, int j, int i, int row, int column) {
      if (first + row > query + column || query + column >= head.seq) all[g][j][i] = 0;
    });
  };
  typename S::Scores scores = {}, dscores;
  add_products<S>(scores, own, tile);
  each_score<S>([&](int g, int j, int i, int, int column) {
    float& p = scores[g][j][i];
    p = fast_exp2(p * factor - lse[column] * kLog2E);
    dscores[g][j][i] = -delta[column];
  });
  hide(scores);
  add_weighted<S>(dv, scores, tile + S::kTile);
  add_products<S>(dscores, own + S::kOwnTile, tile + S::kTile);
  each_score<S>([&](int g, int j, int i, int, int) { dscores[g][j][i] *= scores[g][j][i]; });
  hide(dscores);  // a masked dprob may be a NaN
  add_weighted<S>(dk, dscores, tile);
}

/// The block owns rows of keys and values; the tiles are of queries, dctx, lse and delta.
template <class S>
__global__ void __launch_bounds__(kMmaThreads, 2)
    dkv_mma_kernel(Bf16* dqkv, const Bf16* dctx, const Bf16* qkv, const float* lse,
                   const float* delta, AttentionShape shape, bool in_vectors) {
  const MmaHead head(shape, S::kBlockRows, false, in_vectors);
  constexpr int kOwn = 0;  // tiles of keys and values
  // Two pairs of tiles of queries and dctx, used in turn.
  constexpr int kTiles = kOwn + 2 * S::kOwnTile;
  auto* const values =
      // Two pairs of lse and delta.
      reinterpret_cast<float*>(dynamic_shared() + kTiles + 4 * S::kTile);
  const auto load = [&](int query) {
    const int side = query / S::kPassing % 2, row = static_cast<int>(threadIdx.x);
    const int tile = kTiles + side * 2 * S::kTile;
    start_load<S::kPassing, S::kColumns>(tile, qkv_rows(qkv, 0, head), query, head);
    start_load<S::kPassing, S::kColumns>(tile + S::kTile, ctx_rows(dctx, head), query, head);
    if (row < 2 * S::kPassing) {
      const int at = query + row % S::kPassing;
      const float* const from = (row < S::kPassing ? lse : delta) + head.lse;
      start_copy<4>(values + side * 2 * S::kPassing + row, from + (at < head.seq ? at : 0),
                    at < head.seq);
    }
  };
  const int first = head.first_row + warp() * S::kWarpRows;
  typename S::Sums dk = {}, dv = {};
  start_load<S::kBlockRows, S::kColumns>(kOwn, qkv_rows(qkv, 1, head), head.first_row, head);
  start_load<S::kBlockRows, S::kColumns>(kOwn + S::kOwnTile, qkv_rows(qkv, 2, head), head.first_row,
                                         head);
  load(head.first_row);  // a multiple of kPassing
  for (int query = head.first_row; query < head.seq; query += S::kPassing) {
    finish_copies();
    __syncthreads();  // the tile is complete, and no warp still reads the tile before
    if (query + S::kPassing < head.seq) load(query + S::kPassing);
    // No query of the tile attends to a row of the warp.
    if (query + S::kPassing <= first) continue;
    const int side = query / S::kPassing % 2;
    add_queries<S>(dk, dv, kOwn, kTiles + side * 2 * S::kTile, values + side * 2 * S::kPassing,
                   query, first, head);
  }
  scale_rows<S>(dk, [&](int, int) { return head.scale; });
  store_rows<S>(qkv_rows(dqkv, 1, head), dk, kOwn, head);
  store_rows<S>(qkv_rows(dqkv, 2, head), dv, kOwn + S::kOwnTile, head);
}

template <class Keys, class Queries>
void backward(Bf16* dqkv, const Bf16* dctx, const Bf16* ctx, const Bf16* qkv, const float* lse,
              AttentionShape s, float* delta, Stream stream) {
  static_assert(Keys::kBlockRows % Keys::kPassing == 0);
  const bool in_vectors = in_chunks(s, dqkv, dctx, ctx, qkv);
  launch(delta_mma_kernel, blocks_of(s.batch * s.heads * s.seq, kRowsAWarp * kWarps), kThreads,
         stream, delta, dctx, ctx, s, in_vectors);
  launch_mma<Queries>(2 * Queries::kOwnTile + 4 * Queries::kTile, dq_mma_kernel<Queries>, s, stream,
                      dqkv, dctx, qkv, lse, delta, s, in_vectors);
  constexpr int kValues = 4 * Keys::kPassing * static_cast<int>(sizeof(float) / sizeof(Bf16));
  launch_mma<Keys>(2 * Keys::kOwnTile + 4 * Keys::kTile + kValues, dkv_mma_kernel<Keys>, s, stream,
                   dqkv, dctx, qkv, lse, delta, s, in_vectors);
}

}  // namespace

void attention_mma_dx(Bf16* dqkv, const Bf16* dctx, const Bf16* ctx, const Bf16* qkv,
                      const float* lse, AttentionShape s, void* work, Stream stream) {
  auto* const delta = static_cast<float*>(work);
  const auto with = [&](auto keys, auto queries) {
    backward<decltype(keys), decltype(queries)>(dqkv, dctx, ctx, qkv, lse, s, delta, stream);
  };
  if (s.head_dim <= 32) return with(MmaSizes<32, 2, 32>(), MmaSizes<32, 2, 32>());
  if (s.head_dim <= 64) return with(MmaSizes<64, 2, 32>(), MmaSizes<64, 2, 32>());
  if (s.head_dim <= 96) return with(MmaSizes<96, 1, 32>(), MmaSizes<96, 2, 32>());
  with(MmaSizes<128, 1, 32>(), MmaSizes<128, 2, 16>());
}

}  // namespace moe::kernels::cuda
