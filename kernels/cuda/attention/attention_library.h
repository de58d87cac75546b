// Attention in bfloat16 by cuDNN's fused kernels, where the library is installed and has kernels
// for the shape that give the same bits on every run. For other shapes the caller must use the
// plain kernels (attention_mixed.cpp does so).
#pragma once

#include <string>

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

/// Returns "cuDNN 9.19.0" or "no cuDNN".
std::string attention_library_version();
/// Returns whether the library has kernels for both directions on the calling thread's device. The
/// first request for a shape makes its plans, which takes seconds.
bool library_has_attention(AttentionShape shape);
/// Returns the bytes of `work` that the library needs; 0 if it has kernels for neither direction.
int64_t library_attention_work_bytes(AttentionShape shape);
/// As KernelTable::attention and attention_dx, of a qkv. Return false where the library does not
/// support the call; nothing was queued on the stream then. Otherwise return true, possibly with an
/// error in errors.h.
bool library_attention(Bf16* ctx, float* lse, const Bf16* qkv, AttentionShape shape, void* work,
                       Stream stream);
bool library_attention_dx(Bf16* dqkv, const Bf16* dctx, const Bf16* ctx, const Bf16* qkv,
                          const float* lse, AttentionShape shape, void* work, Stream stream);

}  // namespace moe::kernels::cuda
