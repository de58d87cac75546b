// Products in the form in which they are passed to the libraries: row-major, with operands in the
// type in which they are multiplied. The libraries are column-major and so see the transposed
// matrices: their first operand is b and their rows are the columns here: c' = op(b)' * op(a)'.
#pragma once

#include <span>

#include "kernels/cuda/products/blas.h"

namespace moe::kernels::cuda {

/// What all products of a call have in common. exact: all in float32; otherwise operands are
/// bfloat16, and c is float32 if wide_c is set.
struct Common {
  bool transpose_a, transpose_b;
  float alpha;
  int64_t lda, ldb;
  float beta;
  int64_t ldc;
  bool exact, wide_c;

  cublasOperation_t op_a() const { return operation(transpose_a); }
  cublasOperation_t op_b() const { return operation(transpose_b); }
  cudaDataType_t type_ab() const { return exact ? CUDA_R_32F : CUDA_R_16BF; }
  cudaDataType_t type_c() const { return exact || wide_c ? CUDA_R_32F : CUDA_R_16BF; }
  cublasComputeType_t compute() const {
    return exact ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
  }
  int64_t bytes_ab() const { return exact ? 4 : 2; }
  int64_t bytes_c() const { return exact || wide_c ? 4 : 2; }
};

/// One product with its epilogue, as in kernels::Product.
struct GemmCall {
  int64_t m, n, k;
  const void *a, *b;
  void* c;
  const float* bias;
  const void* add;
  void* before_gelu;
  const void* gelu_at;
  const void* rounded_bias = nullptr;  // the bias in bfloat16, for cublasLt

  bool filled() const { return bias != nullptr || add != nullptr; }
  const void* aux() const { return before_gelu != nullptr ? before_gelu : gelu_at; }
  /// Where cuBLAS writes the product, before a kernel of this project computes c from it.
  void* sum() const { return before_gelu != nullptr ? before_gelu : c; }
};
using GemmCalls = std::span<const GemmCall>;

}  // namespace moe::kernels::cuda
