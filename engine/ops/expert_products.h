// The matrix products of all experts of a rank in one kernel call. Attr products of the op chooses
// the variant of the kernel. Its default is "batch" where all experts have equally many rows, and
// "streams" with rows = "used". The op that calls the products is in expert_linear.cpp.
#pragma once

#include <vector>

#include "engine/ops/expert_rows.h"

namespace moe::ops {

/// OpDef::variants of an op that multiplies the rows of input 0 by experts' weights.
KernelVariants gemm_variants(const Graph& graph, const Op& op);
/// Returns the variant in attr products. Throws UserError when the value is not a variant.
kernels::GemmVariant gemm_variant(const Op& op);

/// Returns an empty list that belongs to this thread; the next call on the thread clears it.
template <class T>
std::vector<kernels::Product<T>>& no_products() {
  thread_local std::vector<kernels::Product<T>> products;
  products.clear();
  return products;
}

}  // namespace moe::ops
