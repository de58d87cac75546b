// GEMM by cuBLAS, in float32: pedantic math keeps TF32 and emulation by narrower types out,
// whatever the environment says. cuBLAS gives the same bits for the same sizes on the same device
// as long as a handle serves one stream; streams that shared one would also share its workspace.
// Hence a handle for each device and stream.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_functions.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

struct Handles {
  std::mutex mutex;
  std::map<std::pair<int, Stream>, cublasHandle_t> of;
};

/// Never destroyed: a process may end after the driver has gone.
Handles& handles() {
  static auto* all = new Handles;
  return *all;
}

bool accepted(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return true;
  keep_error(std::string("cuda: ") + what + ": " + cublasGetStatusString(status));
  return false;
}

cublasHandle_t new_handle(Stream stream) {
  cublasHandle_t handle = nullptr;
  if (!accepted(cublasCreate(&handle), "gemm: cublasCreate")) return nullptr;
  if (accepted(cublasSetStream(handle, static_cast<cudaStream_t>(stream)),
               "gemm: cublasSetStream") &&
      accepted(cublasSetMathMode(handle, CUBLAS_PEDANTIC_MATH), "gemm: cublasSetMathMode"))
    return handle;
  cublasDestroy(handle);
  return nullptr;
}

/// Of the calling thread's device.
cublasHandle_t handle_of(Stream stream) {
  int device = 0;
  if (!worked(cudaGetDevice(&device), "gemm")) return nullptr;
  Handles& all = handles();
  const std::lock_guard lock(all.mutex);
  cublasHandle_t& handle = all.of[{device, stream}];
  if (handle == nullptr) handle = new_handle(stream);
  return handle;
}

cublasOperation_t operation(bool transpose) {
  return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace

void forget_gemm(Stream stream) {
  Handles& all = handles();
  const std::lock_guard lock(all.mutex);
  for (auto at = all.of.begin(); at != all.of.end();) {
    if (at->first.second != stream) {
      ++at;
      continue;
    }
    if (at->second != nullptr) accepted(cublasDestroy(at->second), "end_stream: cublasDestroy");
    at = all.of.erase(at);
  }
}

/// cuBLAS is column-major: it sees the transpose of each matrix, so c' = op(b)' * op(a)'.
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
          int64_t ldc, Stream stream) {
  if (m == 0 || n == 0) return;
  const cublasHandle_t handle = handle_of(stream);
  if (handle == nullptr) return;
  accepted(cublasSgemm_64(handle, operation(transpose_b), operation(transpose_a), n, m, k, &alpha,
                          b, ldb, a, lda, &beta, c, ldc),
           "gemm");
}

}  // namespace moe::kernels::cuda
