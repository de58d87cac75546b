// The sizes of an attention op, for attention.cpp (fused) and attention_unfused.cpp.
#pragma once

#include "engine/graph/op_def.h"
#include "kernels/kernels.h"

namespace moe::ops {

/// Returns the sizes, from input i, qkv [B,S,3d], and attr heads. Throws UserError unless 3 * heads
/// divides the last axis.
kernels::AttentionShape attention_shape(const Graph& graph, const Op& op, size_t i);

}  // namespace moe::ops
