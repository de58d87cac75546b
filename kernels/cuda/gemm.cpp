// GEMM by cuBLAS, in float32 without TF32. cuBLAS gives the same bits for the same sizes on the
// same device as long as a handle serves one stream at a time, hence a handle a thread and device.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <map>
#include <string>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

/// Kept until the process ends: a thread may end after the driver has gone.
cublasHandle_t handle_of_device() {
  static thread_local std::map<int, cublasHandle_t> handles;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    keep_error(std::string("cuda: gemm: ") + cudaGetErrorString(error));
    return nullptr;
  }
  if (const auto found = handles.find(device); found != handles.end()) return found->second;
  cublasHandle_t handle = nullptr;
  if (const cublasStatus_t status = cublasCreate(&handle); status != CUBLAS_STATUS_SUCCESS) {
    keep_error(std::string("cuda: gemm: cublasCreate: ") + cublasGetStatusString(status));
    return nullptr;
  }
  handles[device] = handle;
  return handle;
}

cublasOperation_t operation(bool transpose) {
  return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace

/// cuBLAS is column-major: it sees the transpose of each matrix, so c' = op(b)' * op(a)'.
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
          int64_t ldc, Stream stream) {
  if (m == 0 || n == 0) return;
  const cublasHandle_t handle = handle_of_device();
  if (handle == nullptr) return;
  cublasStatus_t status = cublasSetStream(handle, static_cast<cudaStream_t>(stream));
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasSgemm_64(handle, operation(transpose_b), operation(transpose_a), n, m, k, &alpha,
                            b, ldb, a, lda, &beta, c, ldc);
  if (status != CUBLAS_STATUS_SUCCESS)
    keep_error(std::string("cuda: gemm: ") + cublasGetStatusString(status));
}

}  // namespace moe::kernels::cuda
