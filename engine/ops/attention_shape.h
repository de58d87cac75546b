// The sizes of an attention op.
#pragma once

#include "engine/graph/op_def.h"
#include "kernels/kernels.h"

namespace moe::ops {

/// From input i, qkv [B,S,3d], and attr heads. Throws UserError when they do not fit.
kernels::AttentionShape attention_shape(const Graph& graph, const Op& op, size_t i);

}  // namespace moe::ops
