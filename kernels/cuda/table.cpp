#include "kernels/cuda/table.h"

#include <string>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

void no_kernel(const char* name) {
  keep_error(std::string("cuda: ") + name +
             " has no kernel: attention that materialises its scores runs on the CPU only");
}

}  // namespace

const KernelTable<float>& table() {
  static constexpr KernelTable<float> table = {
      .name = "cuda",
      .gemm = gemm,
      .fill_bias = fill_bias,
      .bias_grad = bias_grad,
      .layernorm = layernorm,
      .layernorm_dx = layernorm_dx,
      .layernorm_dw = layernorm_dw,
      .gelu = gelu,
      .gelu_dx = gelu_dx,
      .embedding = embedding,
      .embedding_dwte = embedding_dwte,
      .embedding_dwpe = embedding_dwpe,
      .attention = attention,
      .attention_dx = attention_dx,
      .attention_work_bytes = attention_work_bytes,
      .attn_score = [](float*, const float*, AttentionShape, Stream) { no_kernel("attn_score"); },
      .attn_softmax = [](float*, const float*, AttentionShape,
                         Stream) { no_kernel("attn_softmax"); },
      .attn_context = [](float*, const float*, const float*, AttentionShape,
                         Stream) { no_kernel("attn_context"); },
      .attn_context_dx = [](float*, float*, const float*, const float*, const float*,
                            AttentionShape, Stream) { no_kernel("attn_context_dx"); },
      .attn_softmax_dx = [](float*, const float*, const float*, AttentionShape,
                            Stream) { no_kernel("attn_softmax_dx"); },
      .attn_score_dx = [](float*, const float*, const float*, AttentionShape,
                          Stream) { no_kernel("attn_score_dx"); },
      .gate_logits = gate_logits,
      .gate_scores = gate_scores,
      .gate_dlogits = gate_dlogits,
      .dispatch = dispatch,
      .dispatch_dx = dispatch_dx,
      .combine = combine,
      .combine_dx = combine_dx,
      .combine_dweight = combine_dweight,
      .cross_entropy = cross_entropy,
      .balance_loss = balance_loss,
      .z_loss = z_loss,
      .sgd = sgd,
      .adamw = adamw,
      .add = add,
      .sum_n = sum_n,
      .copy_2d = copy_2d,
      .clear = clear,
      // Its result would want a wait for the device: note_nonfinite of the device table leaves it
      // there.
      .first_nonfinite = nullptr,
  };
  return table;
}

const KernelTable<float>& table_bf16() {
  static const KernelTable<float> changed = [] {
    KernelTable<float> all = table();
    all.name = "cuda bf16";
    all.gemm = gemm_bf16;
    return all;
  }();
  return changed;
}

const KernelTable<Bf16>& table_mixed() {
  static constexpr KernelTable<Bf16> table = {.name = "cuda mixed",
                                              .attention = attention_mixed,
                                              .attention_dx = attention_dx_mixed,
                                              .attention_work_bytes = attention_mixed_work_bytes};
  return table;
}

}  // namespace moe::kernels::cuda
