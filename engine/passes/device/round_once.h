// Parameters (and other float32 operands) rounded to bfloat16 once per step: where kernels store
// bf16, every matrix product would round such an operand anew. An edit of a plan's graph for a
// device, after all passes (plan.cpp). Results have the same bits; the copies are tensors of the
// plan, with a life and bytes of their own.
#pragma once

#include "engine/graph/graph.h"

namespace moe {

/// Every f32 tensor that two or more products would round (OpDef::rounds of ops that store bf16)
/// gets one `round` op, right before the first of them and of its phase, segment and layer, whose
/// output they all read.
Graph round_once(Graph graph);

}  // namespace moe
