// Assembles the fast table of one instruction set, and its gemm from OpenBLAS.
#include "kernels/cpu/blas.h"
#include "kernels/cpu/fast.h"
#include "kernels/each_product.h"

#define MOE_TEXT_OF(x) #x
#define MOE_TEXT(x) MOE_TEXT_OF(x)

namespace moe::kernels::MOE_ISA {
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
          int64_t ldc, Stream) noexcept {
  if (m == 0 || n == 0) return;  // BLAS would report leading dimensions of 0 as errors
  const auto flag = [](bool t) { return t ? CblasTrans : CblasNoTrans; };
  const auto i = [](int64_t v) { return static_cast<blasint>(v); };
  const BlasCall call;
  blas().sgemm(CblasRowMajor, flag(transpose_a), flag(transpose_b), i(m), i(n), i(k), alpha, a,
               i(lda), b, i(ldb), beta, c, i(ldc));
}

namespace {

KernelTable<float> make_table() noexcept {
  KernelTable<float> table{};
  table.name = "cpu-" MOE_TEXT(MOE_ISA);
  table.gemm = gemm;
  table.gemm_many = each_product<float, gemm, fill_bias, gelu, gelu_dx>;
  set_elementwise(table);
  set_norm(table);
  set_rope(table);
  set_attention(table);
  set_attention_steps(table);
  set_gate(table);
  set_rows(table);
  set_loss(table);
  return table;
}

}  // namespace

const KernelTable<float>& fast_table() {
  static const KernelTable<float> table = make_table();
  return table;
}

}  // namespace moe::kernels::MOE_ISA
