// What attention's kernels for bfloat16 share (FlashAttention-2, Dao 2023). A block of four warps
// owns rows of one head and goes through the other side in tiles of rows that are copied to shared
// memory while the one before is multiplied; a warp owns 16 * kGroups of the block's rows and holds
// its sums in float32 registers.
// In shared memory a row's chunks of 16 bytes are permuted by the row, so that an ldmatrix has no
// bank conflicts: it reads 8 chunks of 8 rows at a time, which fill the 32 banks once if they lie
// in 8 different places modulo 128 bytes (see place()).
// Heads of other sizes than kColumns, and sequences that end within a tile, are filled with zeros.
// What the mask hides weighs 0, so a NaN or infinity in it is not seen beyond its tile, but may
// be seen by the other rows within it.
#pragma once

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/mma.h"

namespace moe::kernels::cuda {

constexpr int kMmaWarps = 4, kMmaThreads = kMmaWarps * kWarp;
constexpr int kSide = 16;  // of the fragments that ldmatrix loads at once
constexpr float kLog2E = 1.44269504f;

/// Heads of up to `columns` columns, `groups` times 16 rows a warp, tiles of `passing` rows of the
/// other side.
template <int columns, int groups, int passing>
struct MmaSizes {
  static constexpr int kColumns = columns, kGroups = groups, kPassing = passing;
  static constexpr int kWarpRows = kSide * groups, kBlockRows = kMmaWarps * kWarpRows;
  static constexpr int kOwnTile = kBlockRows * columns, kTile = passing * columns;  // elements
  /// A warp's sums for its rows and the head's columns, and for its rows and a tile's.
  using Sums = float[groups][columns / 8][4];
  using Scores = float[groups][passing / 8][4];
  /// A value for each row of which the thread holds elements: lane / 4 and that + 8 of each group.
  using RowValues = float[groups][2];
};

/// One head of one sequence, and the rows of it that the block owns. Blocks of one position in the
/// sequence come together, those with the most tiles to go through first.
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
  /// Behind the last of `rows` rows from first_row on.
  __device__ int end(int rows) const { return first_row + rows < seq ? first_row + rows : seq; }
  int seq, head_dim, hidden, first_row;
  bool in_vectors;        // chunks of 16 bytes are aligned in global memory
  int64_t qkv, ctx, lse;  // the head's first elements
  float scale;
};

/// Rows of a head in global memory.
template <class T>
struct MmaRows {
  T* first;
  int stride;
  __device__ T* at(int row, int column) const { return first + int64_t{row} * stride + column; }
};
/// Block 0, 1, 2 of qkv or its gradient: q, k, v.
template <class T>
__device__ inline MmaRows<T> qkv_rows(T* qkv, int block, const MmaHead& head) {
  return {qkv + head.qkv + int64_t{block} * head.hidden, 3 * head.hidden};
}
template <class T>
__device__ inline MmaRows<T> ctx_rows(T* ctx, const MmaHead& head) {
  return {ctx + head.ctx, head.hidden};
}

/// Where a chunk of 8 elements of a row lies in a tile. Tiles and places are numbers of elements in
/// the block's shared memory. Rows of 64 or 128 columns all begin at bank 0: there chunk c of row r
/// takes place c ^ r % 8. Those of 32 and 96 begin at banks 0 and 16 in turn: c ^ r / 2 % 4, among
/// the four chunks of one half.
template <int kColumns>
struct Permuted {
  static constexpr int kChunks = kColumns / 8, kMixed = kChunks % 8 == 0 ? 8 : 4;
};
template <int kColumns>
__device__ inline int place(int row, int chunk) {
  using P = Permuted<kColumns>;
  return row * kColumns + (chunk ^ (row / (8 / P::kMixed) & (P::kMixed - 1))) * 8;
}
/// The chunk that lies `rows`, a multiple of 8, below and `chunks` beyond the one at `from`, whose
/// number has no bit in common with it: with both known to the compiler, few addresses that all
/// chunks of a lane share.
template <int kColumns>
__device__ inline Bf16* beyond(int from, int rows, int chunks) {
  const int mixed = chunks % Permuted<kColumns>::kMixed;
  return dynamic_shared() + (from ^ (mixed * 8)) + rows * kColumns + (chunks - mixed) * 8;
}

/// Starts to copy rows first .. first + kRows - 1 to a tile, by the whole block.
template <int kRows, int kColumns>
__device__ inline void start_load(int tile, MmaRows<const Bf16> rows, int first,
                                  const MmaHead& head) {
  if (head.in_vectors) {
    constexpr int kAcross = kRows < 32 ? 8 : 4, kDown = kMmaThreads / kAcross;  // threads
    static_assert(kRows % kDown == 0 && kColumns / 8 % kAcross == 0);
    const int row = static_cast<int>(threadIdx.x) / kAcross;
    const int chunk = static_cast<int>(threadIdx.x) % kAcross;
    const int to = tile + place<kColumns>(row, chunk);
    const Bf16* const from = rows.at(first + row, chunk * 8);
#pragma unroll
    for (int r = 0; r < kRows; r += kDown)
#pragma unroll
      for (int c = 0; c < kColumns / 8; c += kAcross)
        start_copy<16>(beyond<kColumns>(to, r, c), from + int64_t{r} * rows.stride + c * 8,
                       first + row + r < head.seq && (chunk + c) * 8 < head.head_dim);
    return;
  }
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kColumns; i += kMmaThreads) {
    const int row = i / kColumns, column = i % kColumns;
    const bool there = first + row < head.seq && column < head.head_dim;
    dynamic_shared()[tile + place<kColumns>(row, column / 8) + column % 8] =
        there ? *rows.at(first + row, column) : Bf16{0};
  }
}

/// sums[row, j] += own[row] * passing[j] over the columns, for the warp's rows.
template <class S>
__device__ inline void add_products(typename S::Scores& sums, int own, int passing) {
  own += place<S::kColumns>(warp() * S::kWarpRows + lane() % 16, lane() / 16);
  passing += place<S::kColumns>(lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
#pragma unroll
  for (int k = 0; k < S::kColumns / kSide; ++k) {
    unsigned a[S::kGroups][4];
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g)
      load_matrices(a[g], beyond<S::kColumns>(own, g * kSide, 2 * k));
#pragma unroll
    for (int n = 0; n < S::kPassing / kSide; ++n) {
      unsigned b[4];
      load_matrices(b, beyond<S::kColumns>(passing, n * kSide, 2 * k));
#pragma unroll
      for (int g = 0; g < S::kGroups; ++g) {
        multiply_add(sums[g][2 * n], a[g], b[0], b[1]);
        multiply_add(sums[g][2 * n + 1], a[g], b[2], b[3]);
      }
    }
  }
}

/// sums[row, :] += sum over j of weights[row, j] * passing[j, :], the weights rounded to bfloat16.
/// Two neighbouring fragments of sums, rounded in pairs, are a fragment of a left operand.
template <class S>
__device__ inline void add_weighted(typename S::Sums& sums, const typename S::Scores& weights,
                                    int passing) {
  passing += place<S::kColumns>(lane() % 16, lane() / 16);
#pragma unroll
  for (int k = 0; k < S::kPassing / kSide; ++k) {
    unsigned a[S::kGroups][4];
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&w)[4] = weights[g][2 * k + i / 2];
        a[g][i] = rounded_pair(w[i % 2 * 2], w[i % 2 * 2 + 1]);
      }
#pragma unroll
    for (int n = 0; n < S::kColumns / kSide; ++n) {
      unsigned b[4];
      load_transposed(b, beyond<S::kColumns>(passing, k * kSide, 2 * n));
#pragma unroll
      for (int g = 0; g < S::kGroups; ++g) {
        multiply_add(sums[g][2 * n], a[g], b[0], b[1]);
        multiply_add(sums[g][2 * n + 1], a[g], b[2], b[3]);
      }
    }
  }
}

/// Calls visit(g, j, i, row, column) for the thread's elements [g][j][i] of scores: where they lie
/// among the warp's rows and the tile's. i / 2 is the row's number among RowValues of g.
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

/// Multiplies each row of the sums by its factor.
template <class S, class Factor>
__device__ inline void scale_rows(typename S::Sums& sums, Factor factor) {
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g)
#pragma unroll
    for (int j = 0; j < S::kColumns / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[g][j][i] *= factor(g, i / 2);
}

/// Writes the warp's rows, rounded, by way of its own rows of a tile, which nobody else reads.
template <class S>
__device__ inline void store_rows(MmaRows<Bf16> to, const typename S::Sums& sums, int tile,
                                  const MmaHead& head) {
  tile += warp() * S::kWarpRows * S::kColumns;
  const int mine = tile + place<S::kColumns>(lane() / 4, 0) + lane() % 4 * 2;
  __syncwarp();
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g)
#pragma unroll
    for (int j = 0; j < S::kColumns / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<unsigned*>(beyond<S::kColumns>(mine, g * kSide + half * 8, j)) =
            rounded_pair(sums[g][j][half * 2], sums[g][j][half * 2 + 1]);
  __syncwarp();
  constexpr int kChunks = S::kColumns / 8;
  for (int i = lane(); i < S::kWarpRows * kChunks; i += kWarp) {
    const int row = head.first_row + warp() * S::kWarpRows + i / kChunks, column = i % kChunks * 8;
    if (row >= head.seq || column >= head.head_dim) continue;
    const Bf16* from = dynamic_shared() + tile + place<S::kColumns>(i / kChunks, i % kChunks);
    Bf16* at = to.at(row, column);
    if (head.in_vectors) {
      *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int c = 0; c < 8 && column + c < head.head_dim; ++c) at[c] = from[c];
    }
  }
}

/// Whether chunks of 8 elements are aligned in rows of heads that begin at these pointers.
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
