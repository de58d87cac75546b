// A GEMM is a gemm_many() of one product.
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {

void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
          int64_t ldc, Stream stream) {
  const Product<float> product = {m, n, k, a, b, c};
  gemm_many(GemmVariant::kBatch, transpose_a, transpose_b, 1, &product, alpha, lda, ldb, beta, ldc,
            stream);
}

void gemm_mixed(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                EitherIn a, int64_t lda, EitherIn b, int64_t ldb, float beta, EitherOut c,
                int64_t ldc, Stream stream) {
  const Product<Bf16> product = {m, n, k, a, b, c};
  gemm_many_mixed(GemmVariant::kBatch, transpose_a, transpose_b, 1, &product, alpha, lda, ldb, beta,
                  ldc, stream);
}

}  // namespace moe::kernels::cuda
