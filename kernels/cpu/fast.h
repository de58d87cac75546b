// How a fast table is put together: each file fast_<group>.cpp has a function set_<group>() that
// sets the table's pointers to the kernels in that file. The files are compiled once per
// instruction set, in namespace MOE_ISA. table.cpp chooses one of these tables at run time.
#pragma once

#include "kernels/kernels.h"

namespace moe::kernels::MOE_ISA {

const KernelTable<float>& fast_table();

/// As KernelTable::gemm.
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
          int64_t ldc, Stream stream) noexcept;
/// y[r,c] = bias[c] + residual[r,c], where a null operand counts as 0: the kFillBias that
/// each_product() (kernels/each_product.h) calls.
void fill_bias(float* y, const float* bias, const float* residual, int64_t rows, int64_t cols,
               Stream stream) noexcept;
/// As KernelTable::gelu and gelu_dx.
void gelu(float* y, const float* x, const float* bias, int64_t rows, int64_t cols,
          Stream stream) noexcept;
void gelu_dx(float* dx, const float* dy, const float* x, const float* bias, int64_t rows,
             int64_t cols, Stream stream) noexcept;

void set_elementwise(KernelTable<float>& table) noexcept;
void set_norm(KernelTable<float>& table) noexcept;
void set_rope(KernelTable<float>& table) noexcept;
void set_attention(KernelTable<float>& table) noexcept;
void set_attention_steps(KernelTable<float>& table) noexcept;
void set_gate(KernelTable<float>& table) noexcept;
void set_rows(KernelTable<float>& table) noexcept;
void set_loss(KernelTable<float>& table) noexcept;

}  // namespace moe::kernels::MOE_ISA
