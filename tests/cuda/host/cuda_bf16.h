// Stands in for CUDA's header of bfloat16: the one conversion that kernels/cuda uses.
#pragma once

#include "kernels/bf16.h"

struct [[gnu::may_alias]] __nv_bfloat162 {
  unsigned bits;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {moe::kernels::to_bf16(low).bits | unsigned{moe::kernels::to_bf16(high).bits} << 16};
}
