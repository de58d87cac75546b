// Rounding to bfloat16. A warp rounds a piece of a row, so that rows of any length fill the device.
#include "kernels/cuda/cast.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr int64_t kPiece = 4 * kWarp;  // vectors of a row per warp

__device__ void store(uint16_t* to, float v) {
  *to = static_cast<uint16_t>(rounded(v));
}
__device__ void store(uint2* to, float4 v) {
  to->x = rounded_pair(v.x, v.y);
  to->y = rounded_pair(v.z, v.w);
}

/// Strides and columns are counted in elements of type V; `pieces`: pieces of kPiece per row.
template <class To, class V>
__global__ void cast_kernel(To* out, int64_t out_stride, const V* in, int64_t in_stride,
                            int64_t rows, int64_t cols, int64_t pieces) {
  const int64_t row = warp_number() / pieces, first = warp_number() % pieces * kPiece;
  if (row >= rows) return;
  for (int64_t c = first + lane(); c < first + kPiece && c < cols; c += kWarp)
    store(out + row * out_stride + c, in[row * in_stride + c]);
}

template <class To, class V>
void cast(To* out, int64_t out_stride, const V* in, int64_t in_stride, int64_t rows, int64_t cols,
          Stream stream) {
  const int64_t pieces = blocks_of(cols, kPiece);
  launch(cast_kernel<To, V>, blocks_of(rows * pieces, kWarps), kThreads, stream, out, out_stride,
         in, in_stride, rows, cols, pieces);
}

bool at_8_bytes(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 8 == 0;
}

}  // namespace

void cast_to_bf16(uint16_t* out, int64_t out_stride, const float* in, int64_t in_stride,
                  int64_t rows, int64_t cols, Stream stream) {
  if (vectorable(cols, in) && in_stride % 4 == 0) {
    cast(reinterpret_cast<uint2*>(out), out_stride / 4, reinterpret_cast<const float4*>(in),
         in_stride / 4, rows, cols / 4, stream);
  } else {
    cast(out, out_stride, in, in_stride, rows, cols, stream);
  }
}

void round_exact(float* y, const float* x, int64_t n, Stream stream) {
  const auto bytes = static_cast<int64_t>(sizeof(float)) * n;
  copy_2d(y, bytes, x, bytes, bytes, 1, stream);
}

/// Rounds n numbers as a matrix of one row.
void round_mixed(Bf16* y, const float* x, int64_t n, Stream stream) {
  if (n == 0) return;
  auto* const to = reinterpret_cast<uint16_t*>(y);
  if (at_8_bytes(y)) {
    cast_to_bf16(to, 0, x, 0, 1, n, stream);
  } else {
    cast(to, 0, x, 0, 1, n, stream);
  }
}

}  // namespace moe::kernels::cuda
