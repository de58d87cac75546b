// Products as kernels/cuda gives them to the libraries: row-major, operands in the type that they
// are multiplied in. The libraries are column-major and see the transposes, so that their first
// operand is b and their rows are our columns: c' = op(b)' * op(a)'.
#pragma once

#include <span>

#include "kernels/cuda/products/blas.h"

namespace moe::kernels::cuda {

/// What the products of a call have in common. exact: of float32 alone; otherwise operands are
/// bfloat16, and c is float32 where wide_c says so.
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

/// One product, and its epilogue as Product has it.
struct GemmCall {
  int64_t m, n, k;
  const void *a, *b;
  void* c;
  const float* bias;
  const void* add;
  void* before_gelu;
  const void* gelu_at;
  const void* rounded_bias = nullptr;  // in bfloat16, where cublasLt may want it

  bool filled() const { return bias != nullptr || add != nullptr; }
  const void* aux() const { return before_gelu != nullptr ? before_gelu : gelu_at; }
  /// Where the product itself goes, before what a kernel of our own makes of it.
  void* sum() const { return before_gelu != nullptr ? before_gelu : c; }
};
using GemmCalls = std::span<const GemmCall>;

}  // namespace moe::kernels::cuda
