// The sizes of an attention op, for attend.cpp (fused), attention_unfused.cpp, and the scratch of
// devices.
#pragma once

#include "engine/graph/op_def.h"
#include "kernels/kernels.h"

namespace moe::ops {

/// Returns the sizes, from input i, qkv [B,S,3d], and attr heads. Throws UserError unless 3 * heads
/// divides the last axis.
kernels::AttentionShape attention_shape(const Graph& graph, const Op& op, size_t i);

/// Returns the sizes, from the inputs q, k and v, of which q is input i, and the attributes of op
/// attend. Without k and v, q is qkv. Throws UserError unless they fit together.
kernels::AttentionShape attend_shape(const Graph& graph, const Op& op, size_t i);

}  // namespace moe::ops
