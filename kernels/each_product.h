// KernelTable::gemm_many for tables that run products only one after the other, with separate
// kernels for the epilogues. The order of the steps fixes the bits of the result: Epilogue's bias
// and `add` are written first, then the product is added to them. With before_gelu the bias is
// added after the product. The CUDA products with fused epilogues are in cuda/products/.
#pragma once

#include "kernels/kernels.h"

namespace moe::kernels {

/// Returns `c` as a pointer that a kernel for T can write; with Bf16, `c` must be in bfloat16.
template <class T>
T* stored(T* c) {
  return c;
}
inline Bf16* stored(EitherOut c) {
  return static_cast<Bf16*>(c.data);
}

/// Computes the products one after the other. kGemm, kGelu and kGeluDx are the table's gemm, gelu
/// and gelu_dx. kFillBias(y, bias, residual, rows, cols, stream) computes y[r,c] = bias[c] +
/// residual[r,c]; null counts as 0, and y may be residual.
template <class T, auto kGemm, auto kFillBias, auto kGelu, auto kGeluDx>
void each_product(GemmVariant, bool transpose_a, bool transpose_b, int64_t count,
                  const Product<T>* products, Wide<T> alpha, int64_t lda, int64_t ldb, Wide<T> beta,
                  int64_t ldc, Stream stream) {
  for (const Product<T>* p = products; p != products + count; ++p) {
    const Epilogue<T>& then = p->then;
    const bool with_gelu = then.before_gelu != nullptr;
    const Wide<T>* const first = with_gelu ? nullptr : then.bias;
    const bool filled = first != nullptr || then.add != nullptr;
    auto sum = p->c;
    if (with_gelu) sum = then.before_gelu;
    if (filled) kFillBias(stored(sum), first, then.add, p->m, p->n, stream);
    kGemm(transpose_a, transpose_b, p->m, p->n, p->k, alpha, p->a, lda, p->b, ldb,
          filled ? Wide<T>{1} : beta, sum, ldc, stream);
    if (with_gelu && then.bias != nullptr)
      kFillBias(then.before_gelu, then.bias, then.before_gelu, p->m, p->n, stream);
    if (with_gelu) kGelu(stored(p->c), then.before_gelu, nullptr, p->m, p->n, stream);
    if (then.gelu_at != nullptr)
      kGeluDx(stored(p->c), stored(p->c), then.gelu_at, nullptr, p->m, p->n, stream);
  }
}

}  // namespace moe::kernels
