// Rounding of float matrices to bfloat16, whose numbers are passed as their 16 bits.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

/// out[r,c] = in[r,c] to the nearest bfloat16, of two as near the even one; beyond the largest it
/// is infinity, a NaN stays a NaN with its sign, denormals are kept. Rows begin out_stride and
/// in_stride numbers apart; what lies between rows of out is left alone.
/// Requires: out begins at 8 bytes, out_stride is a multiple of 4.
void cast_to_bf16(uint16_t* out, int64_t out_stride, const float* in, int64_t in_stride,
                  int64_t rows, int64_t cols, Stream stream);

}  // namespace moe::kernels::cuda
