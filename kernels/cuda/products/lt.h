// Products of bfloat16 by cublasLt, with what follows a product in the same kernel. An algorithm is
// what the library's heuristic offers first; it is asked once per device and kind of call, where
// numbers of rows count as one kind up to the next power of two or multiple of 128. So the choice,
// and with it the bits, depends on nothing that came before.
#pragma once

#include "kernels/cuda/products/lt_call.h"

namespace moe::kernels::cuda {

/// Where products run one after the other. handle serves both libraries.
struct Lane {
  cublasHandle_t handle;
  Stream stream;
  Workspace* workspace;
  int64_t workspace_bytes;  // at most
};

/// What cuBLAS itself takes on compute capability 9.0.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

/// Of operands that are not exact. False where the library has nothing for it or refuses it: then
/// the lane was given nothing. Otherwise true, perhaps with an error kept.
bool multiply_by_lt(const Lane& lane, const Common& s, const GemmCall& p, const Batch& batch);

}  // namespace moe::kernels::cuda
