// The matrix products of a rank's experts in one call of the kernels, by the variant that attr
// products says; absent: batch where all experts have equally many rows, streams where rows are
// counted.
#pragma once

#include <vector>

#include "engine/ops/expert_rows.h"

namespace moe::ops {

/// OpDef::variants of an op with such products, of the rows in input 0.
KernelVariants gemm_variants(const Graph& graph, const Op& op);
/// Throws UserError where attr products says something else.
kernels::GemmVariant gemm_variant(const Op& op);

/// An empty list, this thread's until its next call.
template <class T>
std::vector<kernels::Product<T>>& no_products() {
  thread_local std::vector<kernels::Product<T>> products;
  products.clear();
  return products;
}

}  // namespace moe::ops
