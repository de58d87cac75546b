// The routing of steps that were executed, for simulations of the same steps: a router that learns
// routes in a run as no prediction can know.
#pragma once

#include <vector>

#include "engine/routing/routing_model.h"

namespace moe {

/// Returns the routing of executed steps, of which only the used slots are known: a list of steps
/// (from 0), each a list of layers with [micro-batches, ranks,
/// experts]. It has no choices of single tokens (route
/// is null). loads() throws UserError naming the query for another step or layer, and for other
/// numbers of ranks and experts.
RoutingModel executed_routing(std::vector<std::vector<std::vector<int64_t>>> used);

}  // namespace moe
