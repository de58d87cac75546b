// Adds the ops of a training step that concern routers but do not route: their losses, and the
// biases that balance loads. In the graph they come after the model's loss: they need the whole
// batch of a rank (some of all ranks), even where the forward is cut into parts, and no op of the
// forward waits for them. The gates are in routing/.
#pragma once

#include <vector>

#include "engine/model/model.h"

namespace moe {

/// The gate of one MoE layer.
struct Router {
  int64_t block = 0;
  OpId gate;
  TensorId bias;  // not valid without bias balancing
};

/// Throws UserError naming the field of the model and the gate when they cannot be combined.
void check_router_losses(const ModelSpec& model, const GateSpec& gate);

/// Appends the ops that the fields balance_loss, z_loss and bias_balance of the model request: for
/// every router b<i>.moe.load (counts of choices per expert; load_first and load_kept for other
/// values of BalanceLossSpec::Count), .balance_loss, .z_loss and .balance_bias; and the all-reduce
/// of these counts, moe.load.all_reduce (for the other values moe.counts.all_reduce).
void add_router_losses(Graph& graph, const ModelSpec& model, const GateSpec& gate,
                       const std::vector<Router>& routers);

}  // namespace moe
