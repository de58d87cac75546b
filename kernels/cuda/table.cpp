#include "kernels/cuda/table.h"

#include <string>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

void no_kernel(const char* name) {
  keep_error(std::string("cuda: ") + name +
             " has no kernel: attention that stores its scores runs on the CPU only");
}

/// Sets the functions that have the same source for all T, and those that have no kernel.
template <class T>
KernelTable<T> common(const char* name) {
  KernelTable<T> table = {
      .name = name,
      .attn_score = [](T*, const T*, AttentionShape, Stream) { no_kernel("attn_score"); },
      .attn_softmax = [](T*, const T*, AttentionShape, Stream) { no_kernel("attn_softmax"); },
      .attn_context = [](T*, const T*, const T*, AttentionShape,
                         Stream) { no_kernel("attn_context"); },
      .attn_context_dx = [](T*, T*, const T*, const T*, const T*, AttentionShape,
                            Stream) { no_kernel("attn_context_dx"); },
      .attn_softmax_dx = [](T*, const T*, const T*, AttentionShape,
                            Stream) { no_kernel("attn_softmax_dx"); },
      .attn_score_dx = [](T*, const T*, const T*, AttentionShape,
                          Stream) { no_kernel("attn_score_dx"); },
      .copy_2d = copy_2d,
      .clear = clear,
      // Returning its result would need a wait for the device; note_nonfinite of the device table
      // keeps the result in device memory instead.
      .first_nonfinite = nullptr,
  };
  elementwise_kernels(table);
  layernorm_kernels(table);
  rope_kernels(table);
  embedding_kernels(table);
  head_kernels(table);
  gate_kernels(table);
  expert_row_kernels(table);
  loss_kernels(table);
  return table;
}

}  // namespace

const KernelTable<float>& table() {
  static const KernelTable<float> whole = [] {
    KernelTable<float> all = common<float>("cuda");
    all.gemm = gemm;
    all.gemm_many = gemm_many;
    all.attention = attention<float>;
    all.attention_dx = attention_dx<float>;
    all.attention_dsinks = attention_dsinks<float>;
    all.attention_work_bytes = attention_work_bytes;
    all.gate_scores = gate_scores;
    all.gate_dlogits = gate_dlogits;
    all.balance_loss = balance_loss;
    all.z_loss = z_loss;
    all.rope_angles = rope_angles;
    all.sgd = sgd;
    all.adamw = adamw;
    all.square_sums = square_sums;
    all.clip = clip;
    all.round = round_exact;
    return all;
  }();
  return whole;
}

const KernelTable<Bf16>& table_mixed() {
  static const KernelTable<Bf16> whole = [] {
    KernelTable<Bf16> all = common<Bf16>("cuda mixed");
    all.gemm = gemm_mixed;
    all.gemm_many = gemm_many_mixed;
    all.attention = attention_mixed;
    all.attention_dx = attention_dx_mixed;
    all.attention_dsinks = attention_dsinks<Bf16>;
    all.attention_work_bytes = attention_mixed_work_bytes;
    all.round = round_mixed;
    return all;
  }();
  return whole;
}

}  // namespace moe::kernels::cuda
