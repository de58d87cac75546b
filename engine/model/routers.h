// What a training step does with its routers beside routing: their losses, and the biases that
// balance them. All of it stands after the model's loss: it needs whole batches, and nothing of the
// forward waits for it.
#pragma once

#include <vector>

#include "engine/model/model.h"

namespace moe {

/// The gate of one MoE layer.
struct Router {
  int64_t block = 0;
  OpId gate;
  TensorId bias;  // invalid without bias balancing
};

/// Throws UserError naming the field of the model and the gate where they do not fit.
void check_router_losses(const ModelSpec& model, const GateSpec& gate);

/// Appends, as the model asks for them, ops b<i>.moe.load (counts), .balance_loss, .z_loss and
/// .balance_bias of every router, and one all-reduce of the counts, moe.load.all_reduce.
void add_router_losses(Graph& graph, const ModelSpec& model, const GateSpec& gate,
                       const std::vector<Router>& routers);

}  // namespace moe
