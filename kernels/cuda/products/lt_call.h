// The descriptors of a call of cublasLtMatmul; they can be filled without a device. The library is
// column-major: its bias runs along its rows (the columns here), and its a is b here.
#pragma once

#include <cublasLt.h>

#include <optional>

#include "kernels/cuda/products/product.h"

namespace moe::kernels::cuda {

/// The number of products, and for each operand the number of elements from one product's operand
/// to the next one's. aux: before_gelu or gelu_at.
struct Batch {
  int64_t count = 1;
  int64_t a = 0, b = 0, c = 0, add = 0, bias = 0, aux = 0;
};

struct LtCall {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;  // c: the matrix that is added, as large as d
};

/// Returns the library's epilogue for p; nullopt where it has none: for GELU with a summand, and
/// for GELU's gradient with a summand or a bias.
std::optional<cublasLtEpilogue_t> lt_epilogue(const GemmCall& p);
/// Fills `call`; returns the first error. Requires: lt_epilogue(p) has a value; s is not exact.
cublasStatus_t describe(LtCall& call, const Common& s, const GemmCall& p, const Batch& batch);

}  // namespace moe::kernels::cuda
