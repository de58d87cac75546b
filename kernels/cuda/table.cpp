#include "kernels/cuda/table.h"

#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {

const KernelTable<float>& table() {
  static constexpr KernelTable<float> table = {
      .name = "cuda",
      .fill_bias = fill_bias,
      .bias_grad = bias_grad,
      .layernorm = layernorm,
      .layernorm_dx = layernorm_dx,
      .layernorm_dw = layernorm_dw,
      .gelu = gelu,
      .gelu_dx = gelu_dx,
      .add = add,
      .sum_n = sum_n,
      .copy_2d = copy_2d,
  };
  return table;
}

}  // namespace moe::kernels::cuda
