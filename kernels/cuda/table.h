// The kernel tables on device pointers; `stream` is a cudaStream_t. Compiled for the device and, by
// the tests, for the host's emulation; it has never run on a GPU.
// Functions that return nothing keep a failed launch in errors.h. Without a kernel:
//   attn_score, attn_softmax, attn_context and their gradients: they keep an error that says so
//   first_nonfinite: null, it has no stream to read a result on
#pragma once

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

const KernelTable<float>& table();

/// Activations in bfloat16, sums in float32; float32 operands of a GEMM are rounded into room that
/// the stream keeps. gate_logits computes in float32, so that tokens choose other experts only for
/// what the ops before made of their rows, never for the rounding of logits. Null are those that
/// only take Wide<T>, and first_nonfinite.
const KernelTable<Bf16>& table_mixed();

}  // namespace moe::kernels::cuda
