// PipeMoE's two straight lines of an MoE layer from a cost model, and so from measured ops where
// that is a profile: what the layer's all-to-alls and experts take in chunks of several sizes.
#pragma once

#include "engine/cost/cost_model.h"
#include "engine/cost/fit.h"
#include "engine/passes/capacity/capacity_cut.h"
#include "engine/passes/capacity/pipemoe_degree.h"

namespace moe {

/// The work of a layer: n_d, the bytes of a rank's all-to-all; n_e, half the multiply-adds of its
/// experts' forward. The lines are left at 0.
LayerModel work_of(const Graph& forward, const CapacityChain& chain);

struct LayerFit {
  LayerModel model;
  FitError transfer, experts;
  std::optional<FitError> backward;  // of the experts' backward, where the objective asks for it
  std::vector<int64_t> degrees;      // at which a chunk was timed
};

/// The chain's layer cut at degrees 1, 2, 4, 8, 16, as far as capacity and max_degree go: a line
/// each through the times of a chunk's transfer (the mean of its all-to-alls, over n_d), of its
/// experts and, for kStep, of their backward (over n_e). cut_s: what splits and joins take, the
/// mean over the degrees above 1. Requires: at least two degrees. Throws RunError naming the
/// all-to-all where times do not grow with sizes (fit_line).
LayerFit fit_layer(const Graph& forward, const CapacityChain& chain, const CostModel& cost,
                   DegreeObjective objective, int64_t max_degree);

}  // namespace moe
