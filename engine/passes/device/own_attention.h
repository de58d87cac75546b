// Chooses this project's kernels for fused attention in bfloat16, in place of the library's (attr
// kernels of the ops). An edit of a plan's graph for a device, after all passes and before the
// schedulers, so that these use the costs of the kernels that really run (called by plan.cpp).
#pragma once

#include "engine/graph/graph.h"

namespace moe {

Graph own_attention(Graph graph);

}  // namespace moe
