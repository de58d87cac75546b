// Instructions of tensor cores as functions: products of fragments of bfloat16 matrices, loads of
// fragments from shared memory, and asynchronous copies to shared memory (PTX ISA: mma, ldmatrix,
// cp.async; sm_80 and later). Lane l of a warp holds these elements, with r = l / 4, c = 2 * (l %
// 4):
//   a, 16 x 16:    a[0] (r, c..c+1), a[1] (r+8, c..c+1), a[2] (r, c+8..c+9), a[3] (r+8, c+8..c+9)
//   b, 16 x 8:     b0 (c..c+1, r), b1 (c+8..c+9, r)
//   sums, 16 x 8:  [0], [1] (r, c..c+1), [2], [3] (r+8, c..c+1)
// A register contains two bfloat16, the first in its lower half. Functions that work "by a warp"
// must be called by all 32 lanes. tests/cuda/host has a file of the same name that emulates these
// functions on the CPU.
#pragma once

#include <cuda_runtime.h>

#include "kernels/bf16.h"

namespace moe::kernels::cuda {

/// Returns the dynamic shared memory of the block.
__device__ inline Bf16* dynamic_shared() {
  extern __shared__ __align__(128) uint4 all_of_it[];
  return reinterpret_cast<Bf16*>(all_of_it);
}

__device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// Loads four matrices of 8 x 8, by a warp. Lane l passes the address of row l % 8 of matrix l / 8
/// (16 bytes, aligned to 16) and gets elements (r, c..c+1) of matrix i in to[i].
__device__ inline void load_matrices(unsigned (&to)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
/// As load_matrices(), but with each matrix transposed: lane l gets elements (c..c+1, r).
__device__ inline void load_transposed(unsigned (&to)[4], const Bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

/// sums += a b, by a warp. volatile keeps it out of branches that only some lanes take.
__device__ inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Rounds both to the nearest bfloat16, with `low` in the lower half.
__device__ inline unsigned rounded_two(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline float widened(Bf16 v) {
  return __uint_as_float(static_cast<unsigned>(v.bits) << 16);
}

/// Returns 2^v to about 2 units in the last place, and 0 below the smallest normal number.
__device__ inline float fast_exp2(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}

/// Starts to copy kBytes (4 or 16) bytes to shared memory; both addresses must be aligned to
/// kBytes. If not `there`, writes zeros and reads nothing.
template <int kBytes>
__device__ inline void start_copy(void* to_shared, const void* from, bool there) {
  static_assert(kBytes == 4 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to_shared)),
                 "l"(from), "r"(there ? 4 : 0)
                 : "memory");
  }
}
/// Waits for this thread's start_copy()s; a barrier afterwards makes those of all threads visible.
__device__ inline void finish_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace moe::kernels::cuda
