// KernelTable<float> on device pointers, for float32; `stream` is a cudaStream_t. Compiled for the
// device and, by the tests, for the host's emulation; it has never run on a GPU.
// Functions that return nothing keep a failed launch in errors.h. Without a kernel:
//   attn_score, attn_softmax, attn_context and their gradients: they keep an error that says so
//   first_nonfinite: null, it has no stream to read a result on
#pragma once

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

const KernelTable<float>& table();

/// The same with `gemm` alone in bfloat16: operands are rounded to it, products summed in float32;
/// what lies in memory is float32 before and after. All else stays float32: attention, whose
/// products are its own kernels', and gate_logits, so that tokens choose other experts only where
/// what the products before made of their rows says so, never for the rounding of logits.
const KernelTable<float>& table_bf16();

/// Activations in bfloat16, products and sums in float32. Null are all but fused attention.
const KernelTable<Bf16>& table_mixed();

}  // namespace moe::kernels::cuda
