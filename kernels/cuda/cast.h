// Rounding of float matrices to bfloat16, where the result is passed as 16-bit integers. Rounding
// of single numbers inside kernels is in pack.h.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

/// out[r,c] = in[r,c] rounded to the nearest bfloat16, and to the even one if two are equally near.
/// A value beyond the largest bfloat16 becomes infinity, a NaN stays a NaN with its sign, denormals
/// are kept. Rows begin out_stride and in_stride numbers apart; memory between the rows of `out` is
/// left unchanged. Requires: `out` is aligned to 8 bytes, and out_stride is a multiple of 4.
void cast_to_bf16(uint16_t* out, int64_t out_stride, const float* in, int64_t in_stride,
                  int64_t rows, int64_t cols, Stream stream);

}  // namespace moe::kernels::cuda
