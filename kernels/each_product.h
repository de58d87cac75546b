// KernelTable::gemm_many of a table that knows one way only.
#pragma once

#include "kernels/kernels.h"

namespace moe::kernels {

/// One product after the other by kGemm, the table's gemm.
template <class T, auto kGemm>
void each_product(ProductsWay, bool transpose_a, bool transpose_b, int64_t count,
                  const Product<T>* products, Wide<T> alpha, int64_t lda, int64_t ldb, Wide<T> beta,
                  int64_t ldc, Stream stream) {
  for (const Product<T>* p = products; p != products + count; ++p) {
    kGemm(transpose_a, transpose_b, p->m, p->n, p->k, alpha, p->a, lda, p->b, ldb, beta, p->c, ldc,
          stream);
  }
}

}  // namespace moe::kernels
