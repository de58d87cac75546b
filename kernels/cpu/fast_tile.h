// The register tile that every matrix product of the fast kernels is made of. Each element is one
// chain of multiply-adds over the depth, ascending: its bits do not depend on the tile's height, on
// its place in the tile, or on how the operands are packed.
#pragma once

#include "kernels/cpu/fast_simd.h"

#define MOE_UNROLL _Pragma("GCC unroll 16")

namespace moe::kernels::MOE_ISA {
namespace {

constexpr int64_t kTileCols = 2 * kLanes;

/// A number as a type, for lambdas.
template <int n>
struct Constant {
  static constexpr int value = n;
};

template <int kRows>
struct Tile {
  Vec at[kRows][2];
};

/// The sum over p < depth of a[r, p] * b[p * ldb + column]. a[r, p] is a[r * lda + p], or
/// a[p * lda + r] when kColumns is set.
template <int kRows, bool kColumns>
MOE_INLINE Tile<kRows> multiply(int64_t depth, const float* a, int64_t lda, const float* b,
                                int64_t ldb) {
  Tile<kRows> sum;
  MOE_UNROLL for (auto& row : sum.at) row[0] = row[1] = Vec{};
  for (int64_t p = 0; p < depth; ++p) {
    const Vec b0 = load(b), b1 = load(b + kLanes);
    MOE_UNROLL for (int r = 0; r < kRows; ++r) {
      const Vec scalar = splat(kColumns ? a[r] : a[r * lda]);
      sum.at[r][0] += scalar * b0;
      sum.at[r][1] += scalar * b1;
    }
    a += kColumns ? lda : 1;
    b += ldb;
  }
  return sum;
}

}  // namespace
}  // namespace moe::kernels::MOE_ISA
