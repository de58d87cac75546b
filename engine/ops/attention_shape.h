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
/// attend. Without k and v, q is qkv. Throws UserError unless they fit together. context: how many
/// times as many keys as queries there are; 0: as attr context says.
kernels::AttentionShape attend_shape(const Graph& graph, const Op& op, size_t i,
                                     int64_t context = 0);

/// Returns the work of products over `pairs` pairs of a query and a key of each sequence and head,
/// of the triangle(s.seq) that causal attention has: of_keys products with the columns of k,
/// of_values with those of v.
Work pairs_work(const Graph& graph, const Op& op, const kernels::AttentionShape& s, double pairs,
                double of_keys, double of_values);
/// The pairs of a query and a key of a sequence of n tokens that causal attention has.
constexpr double triangle(int64_t n) {
  return 0.5 * static_cast<double>(n) * static_cast<double>(n + 1);
}

/// Returns the scratch bytes of attention of this shape.
Bytes attention_scratch(const kernels::AttentionShape& s, Bytes elem_bytes);

}  // namespace moe::ops
