// GELU with the matrix product that it follows or, in the backward, leads away from: one op where
// there were two, so that a device makes both in one pass over the rows. An edit of a plan's graph
// for a device, after all passes (plan.cpp).
//
// Forward: a `linear` or `expert_linear` without a bias or residual of its own, and the one `gelu`
// that reads it, become the product with attr gelu=1: output 0 is the sum with GELU's bias in it,
// output 1 GELU of that. Where GELU has a bias, all other readers of the sum must be `gelu_dx` ops
// that would add it again, or ops that join the sums of parts for them; these add none any more.
// Backward: a `linear_dx` or `expert_linear_dx` without an accumulator and the `gelu_dx` without a
// bias that alone reads it become the product with attr gelu=1, whose last input is the kept sum.
// Both ops must say the same of the rows that they take: rows, loose, occupancy, the part of the
// batch, counts and begins. A pair that is otherwise stays as it is. In float32 and float64 results
// have the same bits.
#pragma once

#include "engine/graph/graph.h"

namespace moe {

Graph fuse_gelu(Graph graph);

}  // namespace moe
