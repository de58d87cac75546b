// GEMM after Goto and van de Geijn: a panel of op(b), kTileCols wide and kDepth deep, is packed into
// the first-level cache and meets every row of a block of op(a), which is packed for the second
// level where reading it in place would be slow. Each element of c is a sum over the depth in blocks
// that depend on k alone, so a row's bits do not depend on how many rows there are, nor a column's
// on the number of columns: a GEMM that is split over rows or columns gives the same bits.
#include "kernels/cpu/fast.h"
#include "kernels/cpu/fast_tile.h"

namespace moe::kernels::MOE_ISA {
namespace {

constexpr int kTallest = kLanes == 16 ? 12 : 6;  // rows of a tile: all registers but b's and a's
constexpr int64_t kMaxDepth = 384;               // a panel of op(b): 48 KB with AVX-512
constexpr int64_t kMaxRows = 43 * kTallest;      // a block of op(a): 0.8 MB with AVX-512
constexpr int64_t kInPlaceFloats = 64 * 1024;    // op(a) this near together is read where it is

int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/// The size of equal parts of n, each at most `most` and a multiple of `unit`.
int64_t part_of(int64_t n, int64_t most, int64_t unit) {
  const int64_t parts = (n + most - 1) / most;
  return ((n + parts - 1) / parts + unit - 1) / unit * unit;
}

struct Scale {
  float alpha, beta;
};

template <class Lanes>
MOE_INLINE void store_scaled(float* c, Vec sum, Scale by, Lanes lanes) {
  const Vec scaled = by.alpha * sum;  // beta 0 must not read c
  store(c, by.beta == 0 ? scaled : scaled + by.beta * load(c, lanes), lanes);
}

/// c[kRows, cols] = alpha * a * b + beta * c, cols <= kTileCols, b packed.
template <int kRows, bool kColumns>
void tile(int64_t depth, const float* a, int64_t lda, const float* b, Scale by, float* c,
          int64_t ldc, int64_t cols) {
  const float* next = c;
  MOE_UNROLL for (int r = 0; r < kRows; ++r, next += ldc) {
    __builtin_prefetch(next, 1);
    __builtin_prefetch(next + kLanes, 1);
  }
  const Tile<kRows> sum = multiply<kRows, kColumns>(depth, a, lda, b, kTileCols);
  asm("" : "+r"(c), "+r"(ldc));  // or GCC keeps the prefetches' addresses, and spills sums for them
  if (cols >= kTileCols) {
    MOE_UNROLL for (int r = 0; r < kRows; ++r, c += ldc) {
      store_scaled(c, sum.at[r][0], by, All{});
      store_scaled(c + kLanes, sum.at[r][1], by, All{});
    }
    return;
  }
  MOE_UNROLL for (int r = 0; r < kRows; ++r, c += ldc) {
    if (cols < kLanes) {
      store_scaled(c, sum.at[r][0], by, First{cols});
      continue;
    }
    store_scaled(c, sum.at[r][0], by, All{});
    if (cols > kLanes) store_scaled(c + kLanes, sum.at[r][1], by, First{cols - kLanes});
  }
}

/// A block of op(a): rows x depth. In place, or packed in groups of the rows of a tile: a group
/// that begins at row i is at i * kMaxDepth, and is [tile's rows, kMaxDepth], or with kColumns
/// [depth, tile's rows].
struct Block {
  const float* a;
  int64_t lda, rows, depth;
  float* packed;  // null: in place
};

template <int kRows, bool kColumns>
void pack_group(float* to, const float* a, int64_t lda, int64_t depth) {
  if constexpr (kColumns) {
    for (int64_t p = 0; p < depth; ++p, a += lda, to += kRows) {
      MOE_UNROLL for (int r = 0; r < kRows; r += kLanes) {
        if (kRows - r >= kLanes)
          store(to + r, load(a + r));
        else
          store(to + r, load(a + r, First{kRows - r}), First{kRows - r});
      }
    }
  } else {
    for (int r = 0; r < kRows; ++r)
      each_vec(depth, [&](int64_t p, auto lanes) {
        store(to + r * kMaxDepth + p, load(a + r * lda + p, lanes), lanes);
      });
  }
}

/// f(rows of the tile as a constant, first row) for tiles that cover `rows` rows, tallest first.
template <class F>
MOE_INLINE void each_group(int64_t rows, F f) {
  int64_t i = 0;
  const auto cover = [&](auto height) {
    for (; i + height.value <= rows; i += height.value) f(height, i);
  };
  cover(Constant<kTallest>{});
  if constexpr (kTallest > 8) cover(Constant<8>{});
  cover(Constant<4>{});
  cover(Constant<2>{});
  cover(Constant<1>{});
}

template <bool kColumns>
void pack_block(const Block& block) {
  each_group(block.rows, [&](auto height, int64_t i) {
    pack_group<height.value, kColumns>(block.packed + i * kMaxDepth,
                                       block.a + i * (kColumns ? 1 : block.lda), block.lda,
                                       block.depth);
  });
}

/// c[rows, cols] of a whole block.
template <bool kColumns>
void block_times_panel(const Block& block, const float* panel, Scale by, float* c, int64_t ldc,
                       int64_t cols) {
  each_group(block.rows, [&](auto height, int64_t i) {
    constexpr int kRows = height.value;
    float* to = c + i * ldc;
    if (block.packed)
      tile<kRows, kColumns>(block.depth, block.packed + i * kMaxDepth, kColumns ? kRows : kMaxDepth,
                            panel, by, to, ldc, cols);
    else
      tile<kRows, kColumns>(block.depth, block.a + i * (kColumns ? 1 : block.lda), block.lda, panel,
                            by, to, ldc, cols);
  });
}

/// panel [depth, kTileCols] = `cols` columns of op(b), zeros after them; b points to their first.
void pack_panel(float* panel, bool transpose_b, const float* b, int64_t ldb, int64_t depth,
                int64_t cols) {
  constexpr int64_t kAhead = 64;  // floats of each row of b that are prefetched
  for (int64_t c = 0; c < kTileCols; c += kLanes) {
    const int64_t left = cols - c;
    if (!transpose_b) {
      for (int64_t p = 0; p < depth; ++p)
        store(panel + p * kTileCols + c, left >= kLanes ? load(b + p * ldb + c)
                                         : left > 0     ? load(b + p * ldb + c, First{left})
                                                        : Vec{});
      continue;
    }
    each_vec(depth, [&](int64_t p, auto lanes) {
      Vec block[kLanes];
      MOE_UNROLL for (int i = 0; i < kLanes; ++i) {
        const float* row = b + (c + i) * ldb + p;
        if (i < left) __builtin_prefetch(row + kAhead);
        block[i] = i < left ? load(row, lanes) : Vec{};
      }
      transpose(block);
      MOE_UNROLL for (int i = 0; i < kLanes; ++i) store(panel + (p + i) * kTileCols + c, block[i]);
    });
  }
}

}  // namespace

void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
          int64_t ldc, Stream) noexcept {
  if (m == 0 || n == 0) return;
  alignas(64) float panel[kMaxDepth * kTileCols];
  alignas(64) float packed[kMaxRows * kMaxDepth];
  const int64_t most_depth = part_of(k > 0 ? k : 1, kMaxDepth, kLanes);
  const int64_t most_rows = part_of(m, kMaxRows, kTallest);
  Scale by = {alpha, beta};
  for (int64_t p = 0; p < k || p == 0; p += most_depth) {  // once for k = 0: c = beta * c
    const int64_t depth = smaller(most_depth, k - p);
    for (int64_t i = 0; i < m; i += most_rows) {
      Block block = {transpose_a ? a + p * lda + i : a + i * lda + p, lda,
                     smaller(most_rows, m - i), depth, nullptr};
      const int64_t span = (transpose_a ? depth : block.rows) * lda;
      if (span > kInPlaceFloats && n > 4 * kTileCols) {
        block.packed = packed;
        transpose_a ? pack_block<true>(block) : pack_block<false>(block);
      }
      for (int64_t j = 0; j < n; j += kTileCols) {
        pack_panel(panel, transpose_b, transpose_b ? b + j * ldb + p : b + p * ldb + j, ldb, depth,
                   n - j);
        float* to = c + i * ldc + j;
        transpose_a ? block_times_panel<true>(block, panel, by, to, ldc, n - j)
                    : block_times_panel<false>(block, panel, by, to, ldc, n - j);
      }
    }
    by.beta = 1;
  }
}

}  // namespace moe::kernels::MOE_ISA
