// Tiles of rows in shared memory for the attention kernels for bfloat16: loading them, multiplying
// them with a warp's own rows, and storing results through them. The chunks of 16 bytes of a row
// are permuted depending on the row, so that ldmatrix has no bank conflicts: it reads 8 chunks of 8
// rows at a time, and these fill the 32 banks exactly once if their 8 places differ modulo 128
// bytes (see place()).
#pragma once

#include "kernels/cuda/attention/attention_mma.h"

namespace moe::kernels::cuda {

/// Where a chunk of 8 elements of a row is in a tile. Tiles and places are indices of elements in
/// the block's shared memory. Rows of 64 or 128 columns all begin at bank 0; there chunk c of row r
/// is at c ^ r % 8. Rows of 32 or 96 columns begin alternately at banks 0 and 16; there the chunk
/// is at c ^ r / 2 % 4, among the four chunks of one half of the banks.
template <int kColumns>
struct Permuted {
  static constexpr int kChunks = kColumns / 8, kMixed = kChunks % 8 == 0 ? 8 : 4;
};
template <int kColumns>
__device__ inline int place(int row, int chunk) {
  using P = Permuted<kColumns>;
  return row * kColumns + (chunk ^ (row / (8 / P::kMixed) & (P::kMixed - 1))) * 8;
}
/// Returns the chunk that is `rows` rows (a multiple of 8) below and `chunks` chunks after the
/// chunk at `from`. The number of the chunk at `from` must have no bit in common with `chunks`. If
/// `rows` and `chunks` are constants, a lane needs only few addresses for all its chunks.
template <int kColumns>
__device__ inline Bf16* beyond(int from, int rows, int chunks) {
  const int mixed = chunks % Permuted<kColumns>::kMixed;
  return dynamic_shared() + (from ^ (mixed * 8)) + rows * kColumns + (chunks - mixed) * 8;
}

/// Starts to copy kRows rows to a tile, by the whole block; finish_copies() waits for them.
template <int kRows, int kColumns>
__device__ inline void start_load(int tile, MmaRows<const Bf16> rows, int first,
                                  const MmaHead& head) {
  if (head.in_vectors) {
    // kAcross threads copy a row; the block copies kDown rows at the same time.
    constexpr int kAcross = kRows < 32 ? 8 : 4, kDown = kMmaThreads / kAcross;
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

/// sums[row, j] += dot(own[row], passing[j]) over the columns, for the warp's rows.
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

/// sums[row, :] += sum over j of weights[row, j] * passing[j, :], with weights rounded to bfloat16.
/// Two neighbouring fragments of sums, rounded in pairs, form a fragment of a left operand.
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
        a[g][i] = rounded_two(w[i % 2 * 2], w[i % 2 * 2 + 1]);
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

/// Rounds and writes the warp's rows, through its rows of a shared tile that no other warp reads.
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
            rounded_two(sums[g][j][half * 2], sums[g][j][half * 2 + 1]);
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

}  // namespace moe::kernels::cuda
