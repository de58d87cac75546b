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
