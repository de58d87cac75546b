// What the forward and the backward of the plain kernels share: a block owns a few rows of one head
// (queries, or keys for the gradients of k and v) and goes through the other side in tiles of 32
// rows, one lane per row. They compute in float32, without tensor cores: simple rather than fast.
#pragma once

#include "kernels/cuda/device.h"

namespace moe::kernels::cuda {

constexpr int kTile = kWarp;
constexpr int64_t kMaxHeadDim = 192;

/// Sizes for heads of up to 32 * wide columns; shared memory stays below 48 KB.
template <int wide>
struct Sizes {
  static constexpr int kWide = wide;  // columns per lane
  static constexpr int kColumns = wide * kWarp;
  static constexpr int kRows = wide > 4 ? 1 : wide > 2 ? 2 : 4;  // rows per warp
  static constexpr int kBlockRows = kRows * kWarps;
  using Rows = float[kBlockRows][kColumns];
  /// One column more, so that lanes that read one row each have no bank conflicts.
  using Tile = float[kTile][kColumns + 1];
  using Weights = float[kBlockRows][kTile];
};

/// One query head of one sequence: the block's first row, and the pitches and offsets of its
/// matrices.
struct Head {
  /// The first query head of the owner of this block's rows; a sequence has `owners` owners, its
  /// query heads or its heads of k and v.
  __device__ Head(AttentionShape s, int block_rows, int64_t owners)
      : seq(s.seq),
        window(s.window > 0 && s.window < s.seq ? s.window : s.seq),
        head_dim(s.head_dim),
        value_dim(s.value_dim),
        q_pitch(s.q_pitch),
        k_pitch(s.k_pitch),
        v_pitch(s.v_pitch),
        ctx_pitch(s.heads * s.value_dim) {
    const int64_t blocks = (s.seq + block_rows - 1) / block_rows;
    first_row = blockIdx.x % blocks * block_rows;
    const int64_t owner = blockIdx.x / blocks, b = owner / owners;
    number = owner % owners * (s.heads / owners);
    const int64_t kv_head = number / (s.heads / s.kv_heads);
    q = b * s.seq * q_pitch + number * head_dim;
    k = b * s.seq * k_pitch + kv_head * head_dim;
    v = b * s.seq * v_pitch + kv_head * value_dim;
    ctx = b * s.seq * ctx_pitch + number * value_dim;
    lse = (b * s.heads + number) * s.seq;
    scale = s.scale != 0 ? static_cast<float>(s.scale) : 1 / sqrtf(static_cast<float>(s.head_dim));
  }
  /// Moves on to the next query head.
  __device__ void next() {
    ++number;
    q += head_dim;
    ctx += value_dim;
    lse += seq;
  }
  __device__ bool seen(int64_t query, int64_t key) const {
    return key <= query && query - key < window;
  }
  /// The first row of the first tile with a key that the block's queries see.
  __device__ int64_t first_key() const {
    return first_row < window ? 0 : (first_row - window + 1) / kTile * kTile;
  }
  int64_t seq, window, head_dim, value_dim, q_pitch, k_pitch, v_pitch, ctx_pitch;
  int64_t first_row, number;  // number: of the query head within its sequence
  int64_t q, k, v, ctx, lse;  // offsets of the head's first elements
  float scale;
};

/// Copies the kRows rows of `cols` columns from row `first` on to `to`, with 0 beyond the rows and
/// columns of the head. There is a barrier before and after the copy.
template <int kRows, int kPitch, class T>
__device__ void load(float (&to)[kRows][kPitch], const T* from, int64_t pitch, int64_t first,
                     int64_t cols, const Head& head) {
  constexpr int kColumns = kPitch / kWarp * kWarp;
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
    const int64_t r = first + i / kColumns, c = i % kColumns;
    to[i / kColumns][c] = r < head.seq && c < cols ? load<1>(from + r * pitch + c).at[0] : 0.0f;
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
template <class S, class T>
__device__ void store_row(T* to, const float (&acc)[S::kWide], float factor, int64_t cols) {
  for (int i = 0; i < S::kWide; ++i) {
    const int64_t c = lane() + i * kWarp;
    if (c < cols) store(to + c, Numbers<1>{{acc[i] * factor}});
  }
}

/// Calls run with the Sizes that fit the head, or keeps an error (errors.h).
template <class Run>
void with_sizes(AttentionShape s, Run run) {
  const int64_t cols = s.head_dim > s.value_dim ? s.head_dim : s.value_dim;
  if (cols <= 32) return run(Sizes<1>());
  if (cols <= 64) return run(Sizes<2>());
  if (cols <= 128) return run(Sizes<4>());
  if (cols <= kMaxHeadDim) return run(Sizes<kMaxHeadDim / kWarp>());
  keep_error("cuda: attention got heads of " + std::to_string(cols) + " columns; at most " +
             std::to_string(kMaxHeadDim) + " are possible");
}

/// Blocks for the rows of `owners` heads per sequence.
template <class S>
int64_t attention_blocks(AttentionShape s, int64_t owners) {
  return s.batch * owners * blocks_of(s.seq, S::kBlockRows);
}

}  // namespace moe::kernels::cuda
