// Stands in for cuBLAS where a test compiles kernels/cuda for the host: the definition of GEMM, of
// floats and of bfloat16, in plain loops over column-major matrices. It checks the arguments that
// reach cuBLAS, not cuBLAS, and counts the handles that there are. Calls for many matrices are in
// cublas_many.h.
#pragma once

#include <cuda_runtime.h>

#include <set>
#include <utility>

#include "kernels/bf16.h"

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS,
  CUBLAS_STATUS_INVALID_VALUE,
  CUBLAS_STATUS_NOT_SUPPORTED
};
enum cudaDataType { CUDA_R_32F, CUDA_R_16BF };
using cudaDataType_t = cudaDataType;
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_PEDANTIC };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasMath_t {
  CUBLAS_DEFAULT_MATH = 0,
  CUBLAS_PEDANTIC_MATH = 2,
  CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
};
struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
};
using cublasHandle_t = cublasContext*;

namespace emulation {
inline int cublas_handles = 0;
/// Of the last multiplication.
inline cublasContext cublas_used;
/// Calls since a test set them to 0, and the streams of those for one product.
struct CublasCalls {
  int single = 0, batched = 0;
  std::set<cudaStream_t> streams;
};
inline CublasCalls cublas_calls;
/// Whether the rows of its operands of bfloat16 begin at 16 bytes, as tensor cores want them.
inline bool cublas_rows_at_16_bytes = false;
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

namespace emulation {

inline double number(float v) {
  return v;
}
inline double number(moe::kernels::Bf16 v) {
  return to_float(v);
}
inline void put(float& to, double v) {
  to = static_cast<float>(v);
}
inline void put(moe::kernels::Bf16& to, double v) {
  to = moe::kernels::to_bf16(static_cast<float>(v));
}

/// Returns the sum of term(p) for p < n. as_result: the library splits the sum among blocks and
/// stores their parts in the type of the result, as cuBLAS 13.1 does on an H200 where it may.
template <class Out, class Term>
double sum_of(int64_t n, bool as_result, Term term) {
  constexpr int64_t kPart = 16;
  double sum = 0, part = 0;
  for (int64_t p = 0; p < n; ++p) {
    part += term(p);
    if ((p + 1) % kPart != 0 && p + 1 < n) continue;
    if (as_result) {
      Out stored;
      put(stored, part);
      part = number(stored);
    }
    sum += std::exchange(part, 0);
  }
  return sum;
}

/// Of one product, all but the operands.
struct GemmSizes {
  cublasOperation_t op_a, op_b;
  int64_t m, n, k, lda, ldb, ldc;
  cublasMath_t math;
  bool allowed() const {
    const int64_t rows_a = op_a == CUBLAS_OP_N ? m : k, rows_b = op_b == CUBLAS_OP_N ? k : n;
    return m >= 0 && n >= 0 && k >= 0 && lda >= rows_a && lda >= 1 && ldb >= rows_b && ldb >= 1 &&
           ldc >= m;
  }
};

template <class T, class Out>
void multiply(const GemmSizes& s, float alpha, const T* a, const T* b, float beta, Out* c) {
  for (int64_t j = 0; j < s.n; ++j)
    for (int64_t i = 0; i < s.m; ++i) {
      const double sum = sum_of<Out>(s.k, s.math == CUBLAS_DEFAULT_MATH, [&](int64_t p) {
        return number(s.op_a == CUBLAS_OP_N ? a[p * s.lda + i] : a[i * s.lda + p]) *
               number(s.op_b == CUBLAS_OP_N ? b[j * s.ldb + p] : b[p * s.ldb + j]);
      });
      Out& out = c[j * s.ldc + i];
      put(out, alpha * sum + (beta == 0 ? 0.0 : beta * number(out)));
    }
}

template <class T, class Out>
cublasStatus_t gemm(cublasHandle_t handle, const GemmSizes& sizes, float alpha, const T* a,
                    const T* b, float beta, Out* c) {
  cublas_used = *handle;
  ++cublas_calls.single;
  cublas_calls.streams.insert(handle->stream);
  if (!sizes.allowed()) return CUBLAS_STATUS_INVALID_VALUE;
  give(handle->stream, [=] { multiply(sizes, alpha, a, b, beta, c); });
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace emulation

inline cublasStatus_t cublasSgemm_64(cublasHandle_t handle, cublasOperation_t op_a,
                                     cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                                     const float* alpha, const float* a, int64_t lda,
                                     const float* b, int64_t ldb, const float* beta, float* c,
                                     int64_t ldc) {
  return emulation::gemm(handle, {op_a, op_b, m, n, k, lda, ldb, ldc, handle->math}, *alpha, a, b,
                         *beta, c);
}

/// Of bfloat16 into floats or bfloat16, by math that is not pedantic.
inline cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t op_a,
                                      cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                                      const void* alpha, const void* a, cudaDataType type_a,
                                      int64_t lda, const void* b, cudaDataType type_b, int64_t ldb,
                                      const void* beta, void* c, cudaDataType type_c, int64_t ldc,
                                      cublasComputeType_t compute, cublasGemmAlgo_t) {
  using moe::kernels::Bf16;
  const auto at_16_bytes = [](const void* at, int64_t stride) {
    return reinterpret_cast<uintptr_t>(at) % 16 == 0 && stride % 8 == 0;
  };
  if (type_a != CUDA_R_16BF || type_b != CUDA_R_16BF || compute != CUBLAS_COMPUTE_32F ||
      handle->math == CUBLAS_PEDANTIC_MATH)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  emulation::cublas_rows_at_16_bytes = at_16_bytes(a, lda) && at_16_bytes(b, ldb);
  const emulation::GemmSizes sizes = {op_a, op_b, m, n, k, lda, ldb, ldc, handle->math};
  const auto gemm = [&](auto* to) {
    return emulation::gemm(handle, sizes, *static_cast<const float*>(alpha),
                           static_cast<const Bf16*>(a), static_cast<const Bf16*>(b),
                           *static_cast<const float*>(beta), to);
  };
  return type_c == CUDA_R_32F ? gemm(static_cast<float*>(c)) : gemm(static_cast<Bf16*>(c));
}

#include "tests/cuda/host/cublas_many.h"
