// Simulates a single MoE layer (all-to-all, two GEMMs, all-to-all), cut along the capacity as in
// the paper PipeMoE. The layer is a graph of its own, which the event engine simulates with
// PipeMoE's two straight lines (PipeMoeLines) as costs. The simulated time serves to check the
// paper's closed form of the layer's time, which is in passes/capacity/pipemoe_degree.h.
#pragma once

#include <memory>

#include "engine/passes/capacity/pipemoe_degree.h"
#include "engine/plan.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// The two straight lines of PipeMoE's figure 6, in seconds: an all-to-all in which a rank sends y
/// bytes takes alpha_a + beta_a y (Eq. 16); a GEMM of x multiply-adds takes alpha_gemm +
/// beta_gemm x (Eq. 13).
struct PipeMoeLines {
  double alpha_a = 0, beta_a = 0;
  double alpha_gemm = 0, beta_gemm = 0;
};

struct ChunkedLayer {
  int64_t num_ranks = 1;         // 2 or more
  int64_t experts_per_rank = 1;  // an expert has weights [hidden, ffn] and [ffn, hidden]
  int64_t rows = 0;              // rows per rank: choices per token * tokens, evenly over experts
  int64_t hidden = 0, ffn = 0;   // M and H in the paper
  DType dtype = DType::kF16;     // of the rows that are sent
  PipeMoeLines lines;
};

/// Returns the layer in the quantities of the closed form: n_d = rows * M * bytes per element,
/// n_e = rows * M * H, alpha_e = 2 alpha_gemm and beta_e = 2 beta_gemm (Eq. 14, 15).
LayerModel model_of(const ChunkedLayer& layer);

/// Returns the plan of the layer's forward pass, cut into `degree` parts. Throws UserError naming
/// "layer.<field>" for a size below 1, fewer than 2 ranks, a number of rows that is not a multiple
/// of the number of experts, a degree outside 1 to the capacity (rows per expert and source rank),
/// or lines that check(LayerModel) refuses.
std::shared_ptr<const Plan> plan_layer(const ChunkedLayer& layer, int64_t degree);

/// Returns the timeline of one simulated run of a plan_layer() plan.
Timeline simulate_layer(const Plan& plan);
/// Returns the latest end of a span, in nanoseconds: for a layer, the end of its last transfer.
Nanoseconds end_of(const Timeline& timeline);

}  // namespace moe
