// Rounds parameters (and other float32 operands) to bfloat16 once per step. Where kernels store
// bf16, every matrix product would otherwise round such an operand again. An edit of a plan's graph
// for a device, after all passes (called by plan.cpp). The results have the same bits as without
// this edit. Each rounded operand is a tensor of the plan with its own lifetime and bytes.
#pragma once

#include "engine/graph/graph.h"

namespace moe {

/// For every f32 tensor that two or more products would round (OpDef::rounds of ops that store
/// bf16), adds one `round` op right before the first of these products, with that product's phase,
/// segment and layer. All these products then read the output of the `round` op.
Graph round_once(Graph graph);

}  // namespace moe
