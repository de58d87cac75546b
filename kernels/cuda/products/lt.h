// Products of bfloat16 by cublasLt, with the epilogue in the same kernel. The algorithm is the
// first choice of the library's heuristic, which is called once per device and kind of call. Calls
// that differ only in their number of rows are of one kind if these numbers round up to the same
// power of two (up to 128) or the same multiple of 128, and the heuristic is called for the rounded
// number. So the choice, and with it the bits of the result, does not depend on earlier calls.
// Products without cublasLt are in products.cpp.
#pragma once

#include "kernels/cuda/products/lt_call.h"

namespace moe::kernels::cuda {

/// A stream for products (no rank's lane), with its handle (for cuBLAS and cublasLt) and workspace.
struct Lane {
  cublasHandle_t handle;
  Stream stream;
  Workspace* workspace;
  int64_t workspace_bytes;  // limit of the workspace
};

/// The size of the workspace that cuBLAS itself uses on compute capability 9.0.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

/// Queues the product or products that `p` and `batch` describe, with operands in bfloat16 (s.exact
/// is false). Returns false where the library has no algorithm or refuses; nothing is queued then.
/// Otherwise returns true, perhaps with an error in errors.h.
bool multiply_by_lt(const Lane& lane, const Common& s, const GemmCall& p, const Batch& batch);

}  // namespace moe::kernels::cuda
