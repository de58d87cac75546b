// Fits PipeMoE's two straight lines of an MoE layer from a cost model: it times the layer's
// all-to-alls and experts in parts of several sizes. With a profile as cost model, the lines come
// from measured ops. The choice of a degree by these lines is in pipemoe_degree.h, not here.
#pragma once

#include "engine/cost/cost_model.h"
#include "engine/cost/fit.h"
#include "engine/passes/capacity/capacity_cut.h"
#include "engine/passes/capacity/pipemoe_degree.h"

namespace moe {

/// Returns the work of a layer, with the lines left at 0: n_d, the bytes of a rank's all-to-all,
/// and n_e, half the multiply-adds of the forward of the rank's experts (one of two equal GEMMs).
LayerModel work_of(const Graph& forward, const CapacityChain& chain);

struct LayerFit {
  LayerModel model;
  FitError transfer, experts;
  std::optional<FitError> backward;  // error of the line of the experts' backward; only for kStep
  std::vector<int64_t> degrees;      // the degrees at which a part was timed
};

/// Cuts the layer of the chain at degrees 1, 2, 4, 8, 16, as far as its capacity and max_degree
/// allow, and fits straight lines through the times of a part: one for its transfer (the mean of
/// its all-to-alls, over n_d), one for its experts and, for kStep, one for the experts' backward
/// (both over n_e, without copies of experts, which no part repeats). cut_s is the time of the
/// splits and joins, the mean over the degrees above 1. Times that do not grow with sizes, as those
/// of small parts, count as constant. Requires: at least two degrees. Throws RunError naming the
/// all-to-all where a part takes no time.
LayerFit fit_layer(const Graph& forward, const CapacityChain& chain, const CostModel& cost,
                   DegreeObjective objective, int64_t max_degree);

}  // namespace moe
