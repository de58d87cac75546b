// What products keep for each stream of a device: handles of cuBLAS, room for operands, and side
// streams. cuBLAS gives the same bits for the same sizes on the same device as long as a handle
// serves one stream; streams that shared one would also share its workspace. All of it lives until
// the stream ends (forget_gemm), since recordings, which streams outlive, may still use it.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <vector>

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

/// exact: pedantic math, which keeps TF32 and emulation by narrower types out, whatever the
/// environment says. tensor: for bfloat16, which pedantic math would keep from tensor cores.
struct Handles {
  cublasHandle_t exact = nullptr, tensor = nullptr;
};

/// Memory for the calls of one stream, each of which takes it over from the one before. A block
/// that has become too small stays: work under way and recordings may still use it. A new one has
/// at least twice its bytes, so those that stay have together no more than it.
struct Workspace {
  std::vector<void*> blocks;
  int64_t bytes = 0;  // of the last block
};

/// A stream beside another one, whose products it may take a share of.
struct SideStream {
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
  Handles handles;
  Workspace workspace;
};

struct StreamResources {
  Handles handles;
  Workspace operands, workspace;
  cudaEvent_t fork = nullptr;
  std::vector<SideStream> sides;
};

/// Whether the call worked; if not, an error that names `what` is kept.
bool accepted(cublasStatus_t status, const char* what);
/// Of the calling thread's device; null with an error kept. It stays where it is until the stream
/// ends; one thread at a time gives work to a stream.
StreamResources* resources_of(Stream stream);
/// Of one stream's handles the exact or the other, made when it is first asked for; null with an
/// error kept.
cublasHandle_t handle_of(Handles& handles, bool exact, Stream stream);
/// At least so many bytes, from the beginning of the last block; null with an error kept.
void* bytes_of(Workspace& workspace, int64_t bytes);
/// Makes kSides sides and the fork event where they are not there; false with an error kept.
bool have_sides(StreamResources& resources, Stream stream);
constexpr size_t kSides = 4;

/// Sizes of an operand in bfloat16, and how many numbers apart its rows begin: at 16 bytes, as
/// tensor cores want them.
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
