// The call of cuBLAS for many products that kernels/cuda makes. Strict: types as the library's
// documentation lists them, math that suits them, sums that do not overlap.
#pragma once

#include <cublas_v2.h>

namespace emulation {

enum class Types { kNone, kFloats, kNarrow, kNarrowToFloats };

inline Types types_of(cublasHandle_t handle, cudaDataType a, cudaDataType b, cudaDataType c,
                      cublasComputeType_t compute) {
  if (a != b) return Types::kNone;
  const bool pedantic = compute == CUBLAS_COMPUTE_32F_PEDANTIC;
  if (pedantic != (handle->math == CUBLAS_PEDANTIC_MATH) || pedantic != (a == CUDA_R_32F))
    return Types::kNone;
  if (a == CUDA_R_32F) return c == CUDA_R_32F ? Types::kFloats : Types::kNone;
  return c == CUDA_R_32F ? Types::kNarrowToFloats : Types::kNarrow;
}

inline void multiply(Types types, const GemmSizes& sizes, float alpha, const void* a, const void* b,
                     float beta, void* c) {
  const auto *const f = static_cast<const float*>(a), *const g = static_cast<const float*>(b);
  const auto *const n = static_cast<const moe::kernels::Bf16*>(a),
                    *const o = static_cast<const moe::kernels::Bf16*>(b);
  if (types == Types::kFloats) multiply(sizes, alpha, f, g, beta, static_cast<float*>(c));
  if (types == Types::kNarrow)
    multiply(sizes, alpha, n, o, beta, static_cast<moe::kernels::Bf16*>(c));
  if (types == Types::kNarrowToFloats) multiply(sizes, alpha, n, o, beta, static_cast<float*>(c));
}

inline const void* moved(const void* from, int64_t numbers, cudaDataType type) {
  return static_cast<const char*>(from) + numbers * (type == CUDA_R_32F ? 4 : 2);
}

inline bool at_16_bytes(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % 16 == 0;
}

}  // namespace emulation

inline cublasStatus_t cublasGemmStridedBatchedEx_64(
    cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m, int64_t n,
    int64_t k, const void* alpha, const void* a, cudaDataType type_a, int64_t lda,
    long long stride_a, const void* b, cudaDataType type_b, int64_t ldb, long long stride_b,
    const void* beta, void* c, cudaDataType type_c, int64_t ldc, long long stride_c, int64_t count,
    cublasComputeType_t compute, cublasGemmAlgo_t) {
  using namespace emulation;
  cublas_used = *handle;
  ++cublas_calls.batched;
  const Types types = types_of(handle, type_a, type_b, type_c, compute);
  const GemmSizes sizes = {op_a, op_b, m, n, k, lda, ldb, ldc, handle->math};
  if (types == Types::kNone) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!sizes.allowed() || count < 0 || stride_a < 0 || stride_b < 0 || stride_c < (n - 1) * ldc + m)
    return CUBLAS_STATUS_INVALID_VALUE;
  const float by = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  give(handle->stream, [=] {
    for (int64_t i = 0; i < count; ++i)
      multiply(types, sizes, by, moved(a, i * stride_a, type_a), moved(b, i * stride_b, type_b),
               keep, const_cast<void*>(moved(c, i * stride_c, type_c)));
  });
  return CUBLAS_STATUS_SUCCESS;
}
