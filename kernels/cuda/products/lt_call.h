// A product as cublasLtMatmul takes it: descriptors, which are made and filled without a device.
// The library's bias runs along its rows, which are our columns; its a is our b.
#pragma once

#include <cublasLt.h>

#include <optional>

#include "kernels/cuda/products/product.h"

namespace moe::kernels::cuda {

/// How many products there are, and how many numbers lie from each one's operand to the next one's.
/// aux: before_gelu or gelu_at.
struct Batch {
  int64_t count = 1;
  int64_t a = 0, b = 0, c = 0, add = 0, bias = 0, aux = 0;
};

struct LtCall {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;  // c: what is added, as large as d
};

/// What the library calls the epilogue of p; nothing where it has none: with GELU a summand, with
/// its slope a bias too.
std::optional<cublasLtEpilogue_t> lt_epilogue(const GemmCall& p);
/// Requires: p has an epilogue of the library's; s is not exact. Gives the first refusal.
cublasStatus_t describe(LtCall& call, const Common& s, const GemmCall& p, const Batch& batch);

}  // namespace moe::kernels::cuda
