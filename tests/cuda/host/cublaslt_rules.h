// What the documentation of cublasLt demands of a call's descriptors. What it forbids throws, as
// nothing else would notice it.
#pragma once

#include "tests/cuda/host/cublaslt_descriptors.h"

namespace emulation {

inline uint32_t alignment_of(const void* at) {
  const auto bits = reinterpret_cast<uintptr_t>(at) | 256;
  return static_cast<uint32_t>(bits & -bits);
}

/// All of one call but its operands.
struct LtShape {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;
  uint64_t depth() const { return operation.op_a == CUBLAS_OP_N ? a.cols : a.rows; }
  bool has_bias() const { return (operation.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  bool has_aux() const { return (operation.epilogue & 128) != 0; }
};

inline void check_layout(const char* name, const cublasLtMatrixLayoutOpaque_t& m, uint64_t rows,
                         uint64_t cols, const LtShape& s) {
  const std::string matrix = name;
  if (m.rows != rows || m.cols != cols) forbid(matrix + " is not as large as the others say");
  if (m.ld < static_cast<int64_t>(m.rows)) forbid(matrix + " has columns that overlap");
  if (m.count != s.d.count) forbid(matrix + " has another number of matrices");
  if (m.stride < 0 || (m.count == 1 && m.stride != 0)) forbid(matrix + " lies apart by what?");
}

inline void check_epilogue(const LtShape& s) {
  const cublasLtMatmulDescOpaque_t& o = s.operation;
  if (s.has_bias() != (o.bias != nullptr)) forbid("a bias that the epilogue does not speak of");
  if (s.has_bias() && o.bias_type != -1 && o.bias_type != s.d.type)
    forbid("a bias of another type than d");
  if (!s.has_bias() && o.bias_stride != 0) forbid("a stride of no bias");
  if (s.has_aux() != (o.aux != nullptr)) forbid("aux that the epilogue does not speak of");
  if (!s.has_aux()) return;
  const auto rows = static_cast<int64_t>(s.d.rows), cols = static_cast<int64_t>(s.d.cols);
  if (o.aux_ld < rows || o.aux_ld % 8 != 0) forbid("aux with columns that are not at 16 bytes");
  if (s.d.count > 1 && (o.aux_stride < (cols - 1) * o.aux_ld + rows || o.aux_stride % 8 != 0))
    forbid("matrices of aux that overlap or are not at 16 bytes");
  if (alignment_of(o.aux) < 16) forbid("aux that is not at 16 bytes");
}

inline void check(const LtShape& s) {
  const bool ta = s.operation.op_a == CUBLAS_OP_T, tb = s.operation.op_b == CUBLAS_OP_T;
  const uint64_t m = s.d.rows, n = s.d.cols, k = s.depth();
  if (m == 0 || n == 0 || k == 0) forbid("a product without rows, columns or depth");
  check_layout("a", s.a, ta ? k : m, ta ? m : k, s);
  check_layout("b", s.b, tb ? n : k, tb ? k : n, s);
  check_layout("c", s.c, m, n, s);
  check_layout("d", s.d, m, n, s);
  if (s.d.count > 1 && s.d.stride < static_cast<int64_t>(n - 1) * s.d.ld + static_cast<int64_t>(m))
    forbid("matrices of d that overlap");
  if (s.operation.compute != CUBLAS_COMPUTE_32F || s.operation.scale != CUDA_R_32F ||
      s.a.type != CUDA_R_16BF || s.b.type != CUDA_R_16BF || s.c.type != s.d.type)
    forbid("types that do not go together");
  check_epilogue(s);
}

}  // namespace emulation
