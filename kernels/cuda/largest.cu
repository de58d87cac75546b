// Finds the largest number of each row: one warp per row.
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr int64_t kNowhere = -1;

struct Found {
  float value;
  int64_t column;  // kNowhere if all numbers were NaN
};
__device__ Found larger(Found a, Found b) {
  if (a.column == kNowhere) return b;
  if (b.column == kNowhere) return a;
  if (a.value == b.value) return a.column < b.column ? a : b;
  return a.value > b.value ? a : b;
}

template <class T>
__global__ void largest_columns_kernel(int32_t* column, const T* x, int64_t rows, int64_t cols,
                                       int64_t pitch) {
  const int64_t r = warp_number();
  if (r >= rows) return;
  const T* row = x + r * pitch;
  Found best = {0, kNowhere};
  for (int64_t c = lane(); c < cols; c += kWarp) {
    const float v = load<1>(row + c).at[0];
    if (best.column == kNowhere ? !isnan(v) : v > best.value) best = {v, c};
  }
  for (int step = kWarp / 2; step > 0; step /= 2)
    best = larger(best, {__shfl_xor_sync(kAllLanes, best.value, step),
                         __shfl_xor_sync(kAllLanes, best.column, step)});
  if (lane() == 0) column[r] = isnan(load<1>(row).at[0]) ? 0 : static_cast<int32_t>(best.column);
}

}  // namespace

void largest_columns(int32_t* column, EitherIn x, int64_t rows, int64_t cols, int64_t pitch,
                     Stream stream) {
  const int64_t blocks = blocks_of(rows, kWarps);
  if (x.wide) {
    launch(largest_columns_kernel<float>, blocks, kThreads, stream, column,
           static_cast<const float*>(x.data), rows, cols, pitch);
  } else {
    launch(largest_columns_kernel<Bf16>, blocks, kThreads, stream, column,
           static_cast<const Bf16*>(x.data), rows, cols, pitch);
  }
}

}  // namespace moe::kernels::cuda
