// Attention in bfloat16: by cuDNN's kernels if it has some for the shape, else by the plain ones.
#include <algorithm>

#include "kernels/cuda/attention/attention_library.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {

int64_t attention_mixed_work_bytes(AttentionShape s) {
  return std::max(attention_work_bytes(s), s.own ? 0 : library_attention_work_bytes(s));
}

void attention_mixed(Bf16* ctx, float* lse, AttentionIn<Bf16> in, AttentionShape s, void* work,
                     Stream stream) {
  if (s.own || !is_plain(s) || in.sinks || !library_attention(ctx, lse, in.q, s, work, stream))
    attention<Bf16>(ctx, lse, in, s, work, stream);
}

void attention_dx_mixed(AttentionOut<Bf16> out, const Bf16* dctx, const Bf16* ctx,
                        AttentionIn<Bf16> in, const float* lse, AttentionShape s, void* work,
                        Stream stream) {
  if (s.own || !is_plain(s) || !library_attention_dx(out.dq, dctx, ctx, in.q, lse, s, work, stream))
    attention_dx<Bf16>(out, dctx, ctx, in, lse, s, work, stream);
}

}  // namespace moe::kernels::cuda
