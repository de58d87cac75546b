// The layers of PipeMoE's table IV with the constants of its figure 6, in the reading that fits
// both (two bytes per element, k = 2, no factor E/P).
#pragma once

#include <vector>

#include "engine/sim/chunked_layer.h"

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

/// The 288 layers of a cluster: B, L, H, M, E/P.
inline std::vector<ChunkedLayer> pipemoe_layers(const PipeMoeCluster& cluster) {
  std::vector<ChunkedLayer> layers;
  for (const int64_t batch : {2, 4, 8}) {
    for (const int64_t seq : {512, 1024, 2048}) {
      for (const int64_t ffn : {1024, 2048, 4096, 8192}) {
        for (const int64_t hidden : {1024, 2048, 4096, 8192}) {
          for (const int64_t experts : {1, 2}) {
            layers.push_back({.num_ranks = cluster.devices,
                              .experts_per_rank = experts,
                              .rows = 2 * batch * seq,
                              .hidden = hidden,
                              .ffn = ffn,
                              .lines = {.alpha_a = cluster.alpha_a,
                                        .beta_a = cluster.beta_a,
                                        .alpha_gemm = 6.19e-5,
                                        .beta_gemm = 4.1e-14}});
          }
        }
      }
    }
  }
  return layers;
}

}  // namespace moe::test
