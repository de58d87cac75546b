// GEMM by cuBLAS. gemm computes in float32 alone. gemm_mixed takes and gives bfloat16, rounds
// operands of float32 to it, and sums products in float32 on the tensor cores.
#include "kernels/cuda/blas.h"
#include "kernels/cuda/cast.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

/// How cuBLAS finds an operand.
struct Operand {
  const void* data;
  int64_t stride;
};

Operand rounded_into(uint16_t* to, const Rounded& sizes, EitherIn in, int64_t stride,
                     Stream stream) {
  cast_to_bf16(to, sizes.stride, static_cast<const float*>(in.data), stride, sizes.rows, sizes.cols,
               stream);
  return {to, sizes.stride};
}

}  // namespace

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

void gemm_mixed(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                EitherIn a, int64_t lda, EitherIn b, int64_t ldb, float beta, EitherOut c,
                int64_t ldc, Stream stream) {
  if (m == 0 || n == 0) return;
  Kept* const kept = kept_of(stream);
  if (kept == nullptr) return;
  const cublasHandle_t handle = handle_of(kept->handles, false, stream);
  if (handle == nullptr) return;
  const Rounded left = transpose_a ? Rounded(k, m) : Rounded(m, k);
  const Rounded right = transpose_b ? Rounded(n, k) : Rounded(k, n);
  const bool round_a = a.wide && k > 0, round_b = b.wide && k > 0;
  const int64_t numbers = (round_a ? left.numbers() : 0) + (round_b ? right.numbers() : 0);
  uint16_t* to = nullptr;
  if (numbers > 0) {
    to = static_cast<uint16_t*>(room(*kept, numbers * static_cast<int64_t>(sizeof(uint16_t))));
    if (to == nullptr) return;
  }
  const Operand x = round_a ? rounded_into(to, left, a, lda, stream) : Operand{a.data, lda};
  if (round_a) to += left.numbers();
  const Operand y = round_b ? rounded_into(to, right, b, ldb, stream) : Operand{b.data, ldb};
  accepted(cublasGemmEx_64(handle, operation(transpose_b), operation(transpose_a), n, m, k, &alpha,
                           y.data, CUDA_R_16BF, y.stride, x.data, CUDA_R_16BF, x.stride, &beta,
                           c.data, c.wide ? CUDA_R_32F : CUDA_R_16BF, ldc, CUBLAS_COMPUTE_32F,
                           CUBLAS_GEMM_DEFAULT),
           "gemm_mixed");
}

}  // namespace moe::kernels::cuda
