// Stands in for cuBLAS where a test compiles kernels/cuda for the host: the definition of SGEMM in
// plain loops over column-major matrices. It checks the arguments that reach cuBLAS, not cuBLAS,
// and counts the handles that there are.
#pragma once

#include <cuda_runtime.h>

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasMath_t { CUBLAS_DEFAULT_MATH, CUBLAS_PEDANTIC_MATH };
struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
};
using cublasHandle_t = cublasContext*;

namespace emulation {
inline int cublas_handles = 0;
/// Of the last multiplication.
inline cublasContext cublas_used;
}  // namespace emulation

enum libraryPropertyType { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL };
inline cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  *value = 1 + type;
  return CUBLAS_STATUS_SUCCESS;
}
inline const char* cublasGetStatusString(cublasStatus_t) {
  return "invalid value";
}
inline cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new cublasContext;
  ++emulation::cublas_handles;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  --emulation::cublas_handles;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t math) {
  handle->math = math;
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasSgemm_64(cublasHandle_t handle, cublasOperation_t op_a,
                                     cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                                     const float* alpha, const float* a, int64_t lda,
                                     const float* b, int64_t ldb, const float* beta, float* c,
                                     int64_t ldc) {
  emulation::cublas_used = *handle;
  const int64_t rows_a = op_a == CUBLAS_OP_N ? m : k, rows_b = op_b == CUBLAS_OP_N ? k : n;
  if (m < 0 || n < 0 || k < 0 || lda < rows_a || lda < 1 || ldb < rows_b || ldb < 1 || ldc < m)
    return CUBLAS_STATUS_INVALID_VALUE;
  emulation::give(handle->stream, [=, alpha = *alpha, beta = *beta] {
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (int64_t p = 0; p < k; ++p)
          sum += static_cast<double>(op_a == CUBLAS_OP_N ? a[p * lda + i] : a[i * lda + p]) *
                 (op_b == CUBLAS_OP_N ? b[j * ldb + p] : b[p * ldb + j]);
        float& out = c[j * ldc + i];
        out = static_cast<float>(alpha * sum + (beta == 0 ? 0.0 : beta * out));
      }
  });
  return CUBLAS_STATUS_SUCCESS;
}
