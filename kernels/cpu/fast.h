// The parts of a fast table: each file of the same name writes its entries. One set of these
// functions an instruction set.
#pragma once

#include "kernels/kernels.h"

namespace moe::kernels::MOE_ISA {

const KernelTable<float>& fast_table();

/// KernelTable::gemm.
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
          int64_t ldc, Stream stream) noexcept;

void set_elementwise(KernelTable<float>& table) noexcept;
void set_norm(KernelTable<float>& table) noexcept;
void set_attention(KernelTable<float>& table) noexcept;
void set_attention_steps(KernelTable<float>& table) noexcept;
void set_gate(KernelTable<float>& table) noexcept;
void set_rows(KernelTable<float>& table) noexcept;
void set_loss(KernelTable<float>& table) noexcept;

}  // namespace moe::kernels::MOE_ISA
