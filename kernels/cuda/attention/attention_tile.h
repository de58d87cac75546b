// What the forward and the backward of float32 attention share: a block owns a few rows of one head
// (queries, or keys for the gradients of k and v) and goes through the other side in tiles of 32
// rows, one lane per row. All in float32, without tensor cores: simple rather than fast. The
// kernels for bfloat16 are in attention_mma.h.
#pragma once

#include "kernels/cuda/device.h"

namespace moe::kernels::cuda {

constexpr int kTile = kWarp;
constexpr int64_t kMaxHeadDim = 128;

/// Sizes for heads of up to 32 * wide columns; shared memory stays below 48 KB.
template <int wide>
struct Sizes {
  static constexpr int kWide = wide;  // columns per lane
  static constexpr int kColumns = wide * kWarp;
  static constexpr int kRows = wide > 2 ? 2 : 4;  // rows per warp
  static constexpr int kBlockRows = kRows * kWarps;
  using Rows = float[kBlockRows][kColumns];
  /// One column more, so that lanes that read one row each have no bank conflicts.
  using Tile = float[kTile][kColumns + 1];
  using Weights = float[kBlockRows][kTile];
};

/// One head of one sequence: the block's first row, and the strides and offsets of qkv and ctx.
struct Head {
  __device__ Head(AttentionShape s, int block_rows)
      : seq(s.seq), head_dim(s.head_dim), hidden(s.heads * s.head_dim) {
    const int64_t blocks = (s.seq + block_rows - 1) / block_rows;
    first_row = blockIdx.x % blocks * block_rows;
    const int64_t head = blockIdx.x / blocks;  // b * heads + h
    const int64_t b = head / s.heads, column = head % s.heads * s.head_dim;
    qkv = b * s.seq * 3 * hidden + column;
    ctx = b * s.seq * hidden + column;
    lse = head * s.seq;
    scale = 1 / sqrtf(static_cast<float>(s.head_dim));
  }
  __device__ int64_t qkv_row(int64_t block, int64_t i) const {
    return qkv + i * 3 * hidden + block * hidden;
  }
  int64_t seq, head_dim, hidden, first_row;
  int64_t qkv, ctx, lse;  // offsets of the head's first elements
  float scale;
};

/// Copies the kRows rows from row `first` on to `to`, with 0 beyond the rows and columns of the
/// head. There is a barrier before and after the copy.
template <int kRows, int kPitch>
__device__ void load(float (&to)[kRows][kPitch], const float* from, int64_t stride, int64_t first,
                     const Head& head) {
  constexpr int kColumns = kPitch / kWarp * kWarp;
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
    const int64_t r = first + i / kColumns, c = i % kColumns;
    to[i / kColumns][c] = r < head.seq && c < head.head_dim ? from[r * stride + c] : 0.0f;
  }
  __syncthreads();
}

/// out[r] = dot product of the warp's r-th row with the lane's row of the tile.
template <class S>
__device__ void dots(float (&out)[S::kRows], const typename S::Rows& rows,
                     const typename S::Tile& tile) {
  for (int r = 0; r < S::kRows; ++r) out[r] = 0;
  for (int c = 0; c < S::kColumns; ++c) {
    const float v = tile[lane()][c];
    for (int r = 0; r < S::kRows; ++r) out[r] += rows[warp() * S::kRows + r][c] * v;
  }
}

/// acc[r] += sum over j with mask(r, j) of weights[r][j] * tile[j], in ascending order of j. Other
/// rows j are skipped, and not multiplied by 0, since they may contain NaN.
template <class S, class Mask>
__device__ void accumulate(float (&acc)[S::kRows][S::kWide], const typename S::Weights& weights,
                           const typename S::Tile& tile, Mask mask) {
  for (int j = 0; j < kTile; ++j) {
    float v[S::kWide];
    for (int i = 0; i < S::kWide; ++i) v[i] = tile[j][lane() + i * kWarp];
    for (int r = 0; r < S::kRows; ++r) {
      if (!mask(r, j)) continue;
      const float w = weights[warp() * S::kRows + r][j];
      for (int i = 0; i < S::kWide; ++i) acc[r][i] += w * v[i];
    }
  }
}

/// Writes the lane's columns of one row, multiplied by `factor`.
template <class S>
__device__ void store(float* to, const float (&acc)[S::kWide], float factor, int64_t head_dim) {
  for (int i = 0; i < S::kWide; ++i) {
    const int64_t c = lane() + i * kWarp;
    if (c < head_dim) to[c] = acc[i] * factor;
  }
}

/// Returns whether the head is narrow enough; if not, keeps an error (errors.h).
inline bool takes_head(AttentionShape s) {
  if (s.head_dim <= kMaxHeadDim) return true;
  keep_error("cuda: attention got heads of " + std::to_string(s.head_dim) +
             " columns; at most 128 are possible");
  return false;
}

/// Calls run with the Sizes that fit the head, or keeps an error (errors.h).
template <class Run>
void with_sizes(AttentionShape s, Run run) {
  if (!takes_head(s)) return;
  if (s.head_dim <= 32) return run(Sizes<1>());
  if (s.head_dim <= 64) return run(Sizes<2>());
  run(Sizes<4>());
}

template <class S>
int64_t attention_blocks(AttentionShape s) {
  return s.batch * s.heads * blocks_of(s.seq, S::kBlockRows);
}

}  // namespace moe::kernels::cuda
