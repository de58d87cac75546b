// Fuses GELU with the matrix product before it or, in the backward, with the product after it: one
// op in place of two, so that a device computes both in one pass over the rows. An edit of a plan's
// graph for a device, after all passes (called by plan.cpp).
//
// Forward: a `linear` or `expert_linear` without a bias or residual of its own, and the only `gelu`
// that reads it, become the product with attr gelu=1. Its output 0 is the sum including GELU's
// bias, output 1 is GELU of that sum. Where GELU has a bias, all other readers of the sum must be
// `gelu_dx` ops that would add the same bias, or ops that join the sums of parts for such ops;
// these readers no longer add the bias.
// Backward: a `linear_dx` or `expert_linear_dx` without an accumulator and the only op that reads
// it, a `gelu_dx` without a bias, become the product with attr gelu=1, whose last input is the
// saved sum.
// Both ops must describe their rows in the same way: attrs rows, loose, occupancy, the part of the
// batch, and inputs counts and begins. Any other pair stays as it is. In float32 and float64 the
// results have the same bits.
#pragma once

#include "engine/graph/graph.h"

namespace moe {

Graph fuse_gelu(Graph graph);

}  // namespace moe
