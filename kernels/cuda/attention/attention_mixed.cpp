// Attention in bfloat16: by cuDNN's kernels if it has some for the shape, else by this project's.
#include <algorithm>

#include "kernels/cuda/attention/attention_library.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {

int64_t attention_mixed_work_bytes(AttentionShape s) {
  return std::max(attention_mma_work_bytes(s), s.own ? 0 : library_attention_work_bytes(s));
}

void attention_mixed(Bf16* ctx, float* lse, const Bf16* qkv, AttentionShape s, void* work,
                     Stream stream) {
  if (s.own || !library_attention(ctx, lse, qkv, s, work, stream))
    attention_mma(ctx, lse, qkv, s, work, stream);
}

void attention_dx_mixed(Bf16* dqkv, const Bf16* dctx, const Bf16* ctx, const Bf16* qkv,
                        const float* lse, AttentionShape s, void* work, Stream stream) {
  if (s.own || !library_attention_dx(dqkv, dctx, ctx, qkv, lse, s, work, stream))
    attention_mma_dx(dqkv, dctx, ctx, qkv, lse, s, work, stream);
}

}  // namespace moe::kernels::cuda
