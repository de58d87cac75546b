// The kernel tables for device pointers; `stream` is a cudaStream_t. Compiled for the device and,
// in the tests, for an emulation on the CPU; they have never run on a GPU. Functions that return
// nothing keep the error of a failed launch in errors.h. Functions without a kernel:
//   attn_score, attn_softmax, attn_context and their gradients: keep an error that says so
//   first_nonfinite: null, since it has no stream; note_nonfinite of the device table replaces it
#pragma once

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

const KernelTable<float>& table();

/// Activations in bfloat16, sums in float32. float32 operands of a GEMM are rounded into memory
/// that is kept for the stream. gate_logits computes in float32, so the choice of experts is
/// affected by the rounding of a token's row in earlier ops, but not by a rounding of logits.
/// Functions that only take Wide<T> are null, as is first_nonfinite.
const KernelTable<Bf16>& table_mixed();

}  // namespace moe::kernels::cuda
