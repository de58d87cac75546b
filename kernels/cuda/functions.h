// The table's functions, as table.cpp lists them; each is described in kernels/kernels.h and
// defined in the .cu file of its family. Only table.cpp and these files include this.
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
Function<&Floats::gemm> gemm_bf16;  // of table_bf16()

Function<&Floats::fill_bias> fill_bias;
Function<&Floats::gelu> gelu;
Function<&Floats::gelu_dx> gelu_dx;
Function<&Floats::add> add;
Function<&Floats::sum_n> sum_n;
Function<&Floats::copy_2d> copy_2d;
Function<&Floats::clear> clear;

Function<&Floats::sgd> sgd;
Function<&Floats::adamw> adamw;

Function<&Floats::bias_grad> bias_grad;
Function<&Floats::layernorm> layernorm;
Function<&Floats::layernorm_dx> layernorm_dx;
Function<&Floats::layernorm_dw> layernorm_dw;

Function<&Floats::embedding> embedding;
Function<&Floats::embedding_dwte> embedding_dwte;
Function<&Floats::embedding_dwpe> embedding_dwpe;

Function<&Floats::attention> attention;
Function<&Floats::attention_dx> attention_dx;
Function<&Floats::attention_work_bytes> attention_work_bytes;
MixedFunction<&Mixed::attention> attention_mixed;
MixedFunction<&Mixed::attention_dx> attention_dx_mixed;
MixedFunction<&Mixed::attention_work_bytes> attention_mixed_work_bytes;

Function<&Floats::gate_logits> gate_logits;
Function<&Floats::gate_scores> gate_scores;
Function<&Floats::gate_dlogits> gate_dlogits;

Function<&Floats::dispatch> dispatch;
Function<&Floats::dispatch_dx> dispatch_dx;
Function<&Floats::combine> combine;
Function<&Floats::combine_dx> combine_dx;
Function<&Floats::combine_dweight> combine_dweight;

Function<&Floats::cross_entropy> cross_entropy;
Function<&Floats::balance_loss> balance_loss;
Function<&Floats::z_loss> z_loss;

}  // namespace moe::kernels::cuda
