#include "kernels/cuda/table.h"

#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {

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
  };
  return table;
}

}  // namespace moe::kernels::cuda
