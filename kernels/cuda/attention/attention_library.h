// Attention in bfloat16 by cuDNN's fused kernels, where the library is found and has for a shape
// kernels that give the same bits on every run. Who calls has kernels of its own for the rest.
#pragma once

#include <string>

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

/// "cuDNN 9.19.0", "no cuDNN".
std::string attention_library_version();
/// Whether the library has both directions on the calling thread's device. The first time that a
/// shape is asked for its plans are made, which takes seconds.
bool library_has_attention(AttentionShape shape);
/// Bytes of work; as much as the library says, 0 where it has neither direction.
int64_t library_attention_work_bytes(AttentionShape shape);
/// As KernelTable says. False where the library does not take it: then the stream was given
/// nothing. Otherwise true, perhaps with an error kept.
bool library_attention(Bf16* ctx, float* lse, const Bf16* qkv, AttentionShape shape, void* work,
                       Stream stream);
bool library_attention_dx(Bf16* dqkv, const Bf16* dctx, const Bf16* ctx, const Bf16* qkv,
                          const float* lse, AttentionShape shape, void* work, Stream stream);

}  // namespace moe::kernels::cuda
