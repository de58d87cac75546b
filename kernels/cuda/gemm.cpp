// GEMM by cuBLAS. gemm computes in float32 alone. gemm_bf16 rounds its operands to bfloat16 and
// sums their products in float32 on the tensor cores.
#include "kernels/cuda/blas.h"
#include "kernels/cuda/cast.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {

/// cuBLAS is column-major: it sees the transpose of each matrix, so c' = op(b)' * op(a)'.
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
          int64_t ldc, Stream stream) {
  if (m == 0 || n == 0) return;
  Kept* const kept = kept_of(stream);
  if (kept == nullptr) return;
  const cublasHandle_t handle = handle_of(kept->handles, true, stream);
  if (handle == nullptr) return;
  accepted(cublasSgemm_64(handle, operation(transpose_b), operation(transpose_a), n, m, k, &alpha,
                          b, ldb, a, lda, &beta, c, ldc),
           "gemm");
}

void gemm_bf16(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
               int64_t ldc, Stream stream) {
  if (m == 0 || n == 0) return;
  if (k == 0)  // there is nothing to round
    return gemm(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, stream);
  Kept* const kept = kept_of(stream);
  if (kept == nullptr) return;
  const cublasHandle_t handle = handle_of(kept->handles, false, stream);
  if (handle == nullptr) return;
  const Rounded left = transpose_a ? Rounded(k, m) : Rounded(m, k);
  const Rounded right = transpose_b ? Rounded(n, k) : Rounded(k, n);
  constexpr auto kBytes = static_cast<int64_t>(sizeof(uint16_t));
  auto* const a16 =
      static_cast<uint16_t*>(room(*kept, kBytes * (left.numbers() + right.numbers())));
  if (a16 == nullptr) return;
  uint16_t* const b16 = a16 + left.numbers();
  cast_to_bf16(a16, left.stride, a, lda, left.rows, left.cols, stream);
  cast_to_bf16(b16, right.stride, b, ldb, right.rows, right.cols, stream);
  accepted(cublasGemmEx_64(handle, operation(transpose_b), operation(transpose_a), n, m, k, &alpha,
                           b16, CUDA_R_16BF, right.stride, a16, CUDA_R_16BF, left.stride, &beta, c,
                           CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
           "gemm_bf16");
}

}  // namespace moe::kernels::cuda
