// The functions from which table.cpp builds the kernel tables. kernels/kernels.h describes them.
// The .cu and .cpp files of this folder define them; only these and tests include this header.
#pragma once

#include <type_traits>

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

using Floats = KernelTable<float>;
using Mixed = KernelTable<Bf16>;
/// The type of a function of the table, without the pointer.
template <auto Member>
using Function = std::remove_pointer_t<std::remove_reference_t<decltype(Floats{}.*Member)>>;
template <auto Member>
using MixedFunction = std::remove_pointer_t<std::remove_reference_t<decltype(Mixed{}.*Member)>>;

Function<&Floats::gemm> gemm;
MixedFunction<&Mixed::gemm> gemm_mixed;
Function<&Floats::gemm_many> gemm_many;
MixedFunction<&Mixed::gemm_many> gemm_many_mixed;

/// The steps before and after a matrix product, where the kernel of cuBLAS or cublasLt that
/// computes the product does not include them. gelu and gelu_dx are also in the table. fill_bias:
/// y[r,c] = bias[c] + residual[r,c], where null counts as 0 and residual may be y.
template <class T>
void fill_bias(T* y, const float* bias, const T* residual, int64_t rows, int64_t cols, Stream);
template <class T>
void gelu(T* y, const T* x, const float* bias, int64_t rows, int64_t cols, Stream);
template <class T>
void gelu_dx(T* dx, const T* dy, const T* x, const float* bias, int64_t rows, int64_t cols, Stream);

// The plain kernels, for every shape.
template <class T>
void attention(T* ctx, float* lse, AttentionIn<T> in, AttentionShape shape, void* work, Stream);
template <class T>
void attention_dx(AttentionOut<T> out, const T* dctx, const T* ctx, AttentionIn<T> in,
                  const float* lse, AttentionShape shape, void* work, Stream);
template <class T>
void attention_dsinks(float* dsinks, const float* lse, const T* dctx, const T* ctx,
                      const float* sinks, const float* acc, AttentionShape shape, Stream);
Function<&Floats::attention_work_bytes> attention_work_bytes;
MixedFunction<&Mixed::attention> attention_mixed;
MixedFunction<&Mixed::attention_dx> attention_dx_mixed;
MixedFunction<&Mixed::attention_work_bytes> attention_mixed_work_bytes;

Function<&Floats::gate_scores> gate_scores;
Function<&Floats::gate_dlogits> gate_dlogits;
Function<&Floats::balance_loss> balance_loss;
Function<&Floats::z_loss> z_loss;

Function<&Floats::rope_angles> rope_angles;

Function<&Floats::sgd> sgd;
Function<&Floats::adamw> adamw;
Function<&Floats::square_sums> square_sums;
Function<&Floats::clip> clip;

Function<&Floats::round> round_exact;
MixedFunction<&Mixed::round> round_mixed;
Function<&Floats::copy_2d> copy_2d;
Function<&Floats::clear> clear;

// Each sets the table's pointers to the kernels of one .cu file that are templates over T.
template <class T>
void elementwise_kernels(KernelTable<T>& table);
template <class T>
void layernorm_kernels(KernelTable<T>& table);
template <class T>
void rope_kernels(KernelTable<T>& table);
template <class T>
void embedding_kernels(KernelTable<T>& table);
template <class T>
void head_kernels(KernelTable<T>& table);
template <class T>
void gate_kernels(KernelTable<T>& table);
template <class T>
void expert_row_kernels(KernelTable<T>& table);
template <class T>
void loss_kernels(KernelTable<T>& table);

}  // namespace moe::kernels::cuda
