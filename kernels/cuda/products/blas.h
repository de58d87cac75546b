// What matrix products keep for each stream of a device: handles of cuBLAS, memory for operands,
// and side streams. cuBLAS gives the same bits for the same sizes on the same device only if each
// handle serves one stream; streams that share a handle would also share its workspace. Everything
// is kept until the stream is destroyed (forget_gemm()), because recordings may use it, and a
// recording never lives longer than its streams. The products themselves are in products.cpp.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <vector>

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

/// exact: pedantic math, which rules out TF32 and emulation by narrower types, whatever the
/// environment says. tensor: for bfloat16, since pedantic math would not use tensor cores.
struct Handles {
  cublasHandle_t exact = nullptr, tensor = nullptr;
};

/// Memory for the calls of one stream; each call may overwrite what the call before left in it. A
/// block that has become too small is kept, since work in progress and recordings may still use it.
/// A new block is at least twice as large as the last, so all older blocks together are no larger
/// than the last.
struct Workspace {
  std::vector<void*> blocks;
  int64_t bytes = 0;  // size of the last block
};

/// A stream that runs a share of the products of another stream.
struct SideStream {
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
  Handles handles;
  Workspace workspace;
};

/// What is kept for one stream.
struct StreamResources {
  Handles handles;
  Workspace operands, workspace;
  cudaEvent_t fork = nullptr;
  std::vector<SideStream> sides;
};

/// Returns whether the call worked; if not, keeps an error (errors.h) that names `what`.
bool accepted(cublasStatus_t status, const char* what);
/// Returns what is kept for a stream on the calling thread's device; null on failure (see
/// errors.h). The address stays the same until the stream is destroyed. Only one thread at a time
/// may queue work on a stream.
StreamResources* resources_of(Stream stream);
/// Returns handles.exact or handles.tensor, created if missing; null on failure (see errors.h).
cublasHandle_t handle_of(Handles& handles, bool exact, Stream stream);
/// Returns the last block, after adding one if it has fewer than `bytes` bytes; null on failure
/// (see errors.h).
void* bytes_of(Workspace& workspace, int64_t bytes);
/// Creates kSides side streams and the fork event if missing; false on failure (see errors.h).
bool have_sides(StreamResources& resources, Stream stream);
constexpr size_t kSides = 4;

/// Sizes of an operand in bfloat16. `stride`: elements from row to row, rounded up so that rows are
/// aligned to 16 bytes, as tensor cores need them.
struct Bf16Operand {
  Bf16Operand(int64_t rows_, int64_t cols_)
      : rows(rows_), cols(cols_), stride((cols_ + 7) / 8 * 8) {}
  int64_t numbers() const { return rows * stride; }
  int64_t rows, cols, stride;
};

inline cublasOperation_t operation(bool transpose) {
  return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace moe::kernels::cuda
