// KernelTable::gemm_many of a table that knows one way only, and its epilogues by kernels of their
// own. Their order fixes the bits: bias and summand first, then the sum of the product onto them;
// before GELU the bias comes last, as where GELU adds it.
#pragma once

#include "kernels/kernels.h"

namespace moe::kernels {

template <class T>
T* stored(T* c) {
  return c;
}
inline Bf16* stored(EitherOut c) {
  return static_cast<Bf16*>(c.data);
}

/// One product after the other by kGemm, kGelu and kGeluDx, the table's gemm, gelu and gelu_dx, and
/// kFillBias(y, bias, residual, rows, cols, stream): y[r,c] = bias[c] + residual[r,c], of which
/// either may be null and taken as 0; y may be residual.
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
