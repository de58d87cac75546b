// The tile of registers of the products in fast_attention.cpp (GEMMs are OpenBLAS's). Each element
// is one chain of multiply-adds in ascending order of the summed index, so its bits do not depend
// on the height of the tile, on its place in the tile, or on how the operands are packed.
#pragma once

#include "kernels/cpu/fast_simd.h"

namespace moe::kernels::MOE_ISA {
namespace {

constexpr int64_t kTileCols = 2 * kLanes;

/// kRows x kVecs vectors of sums.
template <int kRows, int kVecs = 2>
struct Tile {
  Vec at[kRows][kVecs];
};

/// Returns the sum over p < depth of a[r, p] * b[p * ldb + column], for each row r and each column
/// of the tile. a[r, p] is a[r * lda + p], or a[p * lda + r] if kColumns is set.
template <int kRows, bool kColumns, int kVecs = 2>
MOE_INLINE Tile<kRows, kVecs> multiply(int64_t depth, const float* a, int64_t lda, const float* b,
                                       int64_t ldb) {
  Tile<kRows, kVecs> sum;
  MOE_UNROLL for (auto& row : sum.at) MOE_UNROLL for (Vec& v : row) v = Vec{};
  for (int64_t p = 0; p < depth; ++p) {
    Vec bv[kVecs];
    MOE_UNROLL for (int v = 0; v < kVecs; ++v) bv[v] = load(b + v * kLanes);
    MOE_UNROLL for (int r = 0; r < kRows; ++r) {
      const Vec scalar = splat(kColumns ? a[r] : a[r * lda]);
      MOE_UNROLL for (int v = 0; v < kVecs; ++v) sum.at[r][v] += scalar * bv[v];
    }
    a += kColumns ? lda : 1;
    b += ldb;
  }
  return sum;
}

}  // namespace
}  // namespace moe::kernels::MOE_ISA
