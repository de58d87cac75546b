// Rows of a gate's numbers, which some adjacent lanes of a warp hold in registers and read once.
#pragma once

#include "kernels/cuda/device.h"

namespace moe::kernels::cuda {

/// `lanes` lanes have a row, each up to `each` of its numbers. each = 0 stands for rows that are
/// too long for registers.
template <int lanes, int each>
struct RowLanes {
  static constexpr int kLanes = lanes, kEach = each, kRows = kWarp / lanes;
  __device__ static int first() { return lane() % kLanes; }
  /// Calls f(c, i) for each column c < cols of this lane, the i-th.
  template <class F>
  __device__ static void columns(int64_t cols, F f) {
    if constexpr (each == 0) {
      for (int64_t c = first(); c < cols; c += kLanes) f(c, 0);
    } else {
      for (int i = 0; i < each; ++i)
        if (first() + i * kLanes < cols) f(int64_t{first() + i * kLanes}, i);
    }
  }
};

/// Turns the logits of a row into scores, in place: number(c, i) is that of column c, this lane's
/// i-th. All lanes of the warp must call it.
template <class R, class Number>
__device__ void score_row(ScoreRule rule, int64_t cols, Number number) {
  if (rule == ScoreRule::kSigmoid)
    return R::columns(cols,
                      [&](int64_t c, int i) { number(c, i) = 1 / (1 + expf(-number(c, i))); });
  float top = -INFINITY, sum = 0;
  R::columns(cols, [&](int64_t c, int i) { top = max_or_nan(top, number(c, i)); });
  top = warp_max(top, R::kLanes);
  R::columns(cols, [&](int64_t c, int i) { sum += number(c, i) = expf(number(c, i) - top); });
  sum = warp_sum(sum, R::kLanes);
  R::columns(cols, [&](int64_t c, int i) { number(c, i) /= sum; });
}

/// Calls run(RowLanes()) for rows of `cols` numbers.
template <class Run>
void in_rows(int64_t cols, Run run) {
  if (cols <= 64) return run(RowLanes<8, 8>());
  if (cols <= 128) return run(RowLanes<16, 8>());
  if (cols <= 256) return run(RowLanes<kWarp, 8>());
  if (cols <= 1024) return run(RowLanes<kWarp, 32>());
  run(RowLanes<kWarp, 0>());
}

}  // namespace moe::kernels::cuda
