// The layers of PipeMoE's table IV with the constants of its figure 6, in the reading that fits
// both (two bytes per element, k = 2, no factor E/P).
#pragma once

#include <vector>

#include "engine/passes/capacity/pipemoe_degree.h"

namespace moe::test {

/// Figure 6. alpha_a of 16 GPUs is printed as 1.72e-5, ten times below what the two other clusters
/// and Eq. 27 lead to expect.
struct PipeMoeCluster {
  int64_t devices;
  double alpha_a, beta_a;
};
constexpr PipeMoeCluster kPrinted16 = {16, 1.72e-5, 2.96e-10};
constexpr PipeMoeCluster kLikely16 = {16, 1.72e-4, 2.96e-10};
constexpr PipeMoeCluster kCluster32 = {32, 2.09e-4, 3.54e-10};
constexpr PipeMoeCluster kCluster64 = {64, 7.83e-4, 3.84e-10};
// A GEMM of x multiply-adds takes kAlphaGemm + kBetaGemm x seconds (Eq. 13).
constexpr double kAlphaGemm = 6.19e-5, kBetaGemm = 4.1e-14;

/// B * L tokens per rank, each with two choices; an expert has weights [H, M] and [M, H].
struct PipeMoeLayer {
  PipeMoeCluster cluster;
  int64_t tokens, ffn, hidden, experts_per_rank;

  LayerModel model() const {
    const auto rows = static_cast<double>(2 * tokens), m = static_cast<double>(hidden);
    return {.alpha_a = cluster.alpha_a,
            .beta_a = cluster.beta_a,
            .n_d = rows * m * 2,
            .alpha_e = 2 * kAlphaGemm,
            .beta_e = 2 * kBetaGemm,
            .n_e = rows * m * static_cast<double>(ffn)};
  }
};

/// The 288 layers of a cluster: B, L, H, M, E/P.
inline std::vector<PipeMoeLayer> pipemoe_layers(const PipeMoeCluster& cluster) {
  std::vector<PipeMoeLayer> layers;
  for (const int64_t batch : {2, 4, 8})
    for (const int64_t seq : {512, 1024, 2048})
      for (const int64_t ffn : {1024, 2048, 4096, 8192})
        for (const int64_t hidden : {1024, 2048, 4096, 8192})
          for (const int64_t experts : {1, 2})
            layers.push_back({cluster, batch * seq, ffn, hidden, experts});
  return layers;
}

}  // namespace moe::test
