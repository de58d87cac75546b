// What the attention kernels for bfloat16 share (FlashAttention-2, Dao 2023). A block of four warps
// owns rows of one head (queries or keys) and goes through the rows of the other side in tiles. A
// tile is copied to shared memory while the tile before is multiplied. A warp owns 16 * kGroups of
// the block's rows and holds their sums in float32 registers. Heads with fewer than kColumns
// columns, and sequences that end inside a tile, are filled with zeros. Masked elements have weight
// 0; so a NaN or infinity in a masked element does not reach other tiles, but it may reach other
// rows of its own tile. The kernels for float32 are in attention_tile.h.
#pragma once

#include "kernels/cuda/attention/attention_tile.h"
#include "kernels/cuda/attention/mma.h"

namespace moe::kernels::cuda {

constexpr int kMmaWarps = 4, kMmaThreads = kMmaWarps * kWarp;
constexpr int kSide = 16;  // rows and columns of the fragments that ldmatrix loads at once
constexpr float kLog2E = 1.44269504f;

/// Sizes of a kernel: heads of up to `columns` columns, `groups` times 16 rows per warp, and tiles
/// of `passing` rows of the other side. A fragment of the other side is read from shared memory
/// once for all rows of a warp. Therefore first `groups`, then `passing`, are as large as 255
/// registers per thread allow without spilling. Two blocks share a multiprocessor.
template <int columns, int groups, int passing>
struct MmaSizes {
  static constexpr int kColumns = columns, kGroups = groups, kPassing = passing;
  static constexpr int kWarpRows = kSide * groups, kBlockRows = kMmaWarps * kWarpRows;
  static constexpr int kOwnTile = kBlockRows * columns, kTile = passing * columns;  // elements
  /// A warp's sums: its rows x the head's columns, and (Scores) its rows x the rows of a tile.
  using Sums = float[groups][columns / 8][4];
  using Scores = float[groups][passing / 8][4];
  /// One value per row of the thread's elements: rows lane / 4 and lane / 4 + 8 of each group.
  using RowValues = float[groups][2];
};

/// One head of one sequence, and its rows that the block owns. Blocks at the same position of the
/// sequence are launched together; positions with the most tiles are launched first.
struct MmaHead {
  __device__ MmaHead(AttentionShape s, int block_rows, bool last_first, bool vectors)
      : seq(static_cast<int>(s.seq)),
        head_dim(static_cast<int>(s.head_dim)),
        hidden(static_cast<int>(s.heads * s.head_dim)),
        in_vectors(vectors) {
    const int64_t heads = s.batch * s.heads, head = blockIdx.x % heads;
    const int blocks = (seq + block_rows - 1) / block_rows;
    const int position = static_cast<int>(blockIdx.x / heads);
    first_row = (last_first ? blocks - 1 - position : position) * block_rows;
    const int64_t b = head / s.heads, column = head % s.heads * s.head_dim;
    qkv = b * s.seq * 3 * hidden + column;
    ctx = b * s.seq * hidden + column;
    lse = head * s.seq;
    scale = 1 / sqrtf(static_cast<float>(s.head_dim));
  }
  /// The end of the `rows` rows from first_row on, at most seq.
  __device__ int end(int rows) const { return first_row + rows < seq ? first_row + rows : seq; }
  int seq, head_dim, hidden, first_row;
  bool in_vectors;        // whether chunks of 16 bytes are aligned in global memory
  int64_t qkv, ctx, lse;  // offsets of the head's first elements
  float scale;
};

/// Rows of a head in global memory.
template <class T>
struct MmaRows {
  T* first;
  int stride;
  __device__ T* at(int row, int column) const { return first + int64_t{row} * stride + column; }
};
/// Returns the rows of q, k or v (block 0, 1 or 2) in qkv or in its gradient.
template <class T>
__device__ inline MmaRows<T> qkv_rows(T* qkv, int block, const MmaHead& head) {
  return {qkv + head.qkv + int64_t{block} * head.hidden, 3 * head.hidden};
}
template <class T>
__device__ inline MmaRows<T> ctx_rows(T* ctx, const MmaHead& head) {
  return {ctx + head.ctx, head.hidden};
}

/// Calls visit(g, j, i, row, column) for the thread's elements [g][j][i] of scores, where `row` is
/// the row among the warp's rows and `column` the row of the tile. i / 2 is the index of the row in
/// RowValues of group g.
template <class S, class Visit>
__device__ inline void each_score(Visit visit) {
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g)
#pragma unroll
    for (int j = 0; j < S::kPassing / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        visit(g, j, i, g * kSide + i / 2 * 8 + lane() / 4, j * 8 + lane() % 4 * 2 + i % 2);
}

/// Multiplies each row of the sums by factor(g, half).
template <class S, class Factor>
__device__ inline void scale_rows(typename S::Sums& sums, Factor factor) {
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g)
#pragma unroll
    for (int j = 0; j < S::kColumns / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[g][j][i] *= factor(g, i / 2);
}

/// Returns whether chunks of 8 elements are aligned in rows of heads that begin at these pointers.
template <class... P>
bool in_chunks(AttentionShape s, const P*... pointers) {
  return s.head_dim % 8 == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

template <class S, class... P>
void launch_mma(int64_t shared_elements, void (*kernel)(P...), AttentionShape s, Stream stream,
                std::type_identity_t<P>... args) {
  const int64_t bytes = shared_elements * static_cast<int64_t>(sizeof(Bf16));
  if (worked(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)),
             "attention"))
    launch_with_shared(bytes, kernel, s.batch * s.heads * blocks_of(s.seq, S::kBlockRows),
                       kMmaThreads, stream, args...);
}

}  // namespace moe::kernels::cuda
