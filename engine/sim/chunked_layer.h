// One MoE layer alone (all-to-all, two GEMMs, all-to-all) as a graph of its own, cut along the
// capacity and simulated by the event engine with PipeMoE's two straight lines as costs: what its
// closed form (passes/pipemoe_degree.h) says, without the closed form.
#pragma once

#include <memory>

#include "engine/passes/capacity/pipemoe_degree.h"
#include "engine/plan.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// Lines of PipeMoE's figure 6, in seconds: a transfer of y bytes of a rank's all-to-all takes
/// alpha_a + beta_a y (Eq. 16), a GEMM of x multiply-adds alpha_gemm + beta_gemm x (Eq. 13).
struct PipeMoeLines {
  double alpha_a = 0, beta_a = 0;
  double alpha_gemm = 0, beta_gemm = 0;
};

struct ChunkedLayer {
  int64_t num_ranks = 1;         // 2 or more
  int64_t experts_per_rank = 1;  // each [hidden, ffn] and [ffn, hidden]
  int64_t rows = 0;              // of a rank: choices per token * tokens, over all experts alike
  int64_t hidden = 0, ffn = 0;   // M, H
  DType dtype = DType::kF16;     // of what is sent
  PipeMoeLines lines;
};

/// The same as numbers: n_d = rows M bytes, n_e = rows M H, alpha_e = 2 alpha_gemm (Eq. 14, 15).
LayerModel model_of(const ChunkedLayer& layer);

/// The plan of the layer's forward in `degree` parts. Throws UserError naming "layer.<field>" for
/// sizes below 1, rows that do not divide over the experts, a degree outside 1 to the capacity
/// (rows per expert and source), lines that check() refuses.
std::shared_ptr<const Plan> plan_layer(const ChunkedLayer& layer, int64_t degree);

/// When the last transfer of the plan ends, by simulation.
Timeline simulate_layer(const Plan& plan);
Nanoseconds end_of(const Timeline& timeline);

}  // namespace moe
