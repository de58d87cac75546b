// Attr gelu=1 of a matrix product op: the op also applies GELU. Forward: output 0 is the sum
// (product plus bias), output 1 is GELU(sum). Backward: dx is the product multiplied by the slope
// of GELU at the sum, which is an additional input. GELU as an op of its own is in gelu.cpp.
#pragma once

#include "engine/ops/rules.h"

namespace moe::ops {

/// Flops per element of GELU and of its gradient.
constexpr double kGeluFlops = 12, kGeluDxFlops = 20;

inline bool with_gelu(const Op& op) {
  return attr_int(op, "gelu") != 0;
}

/// Throws UserError unless attr gelu is 0 or 1, and if input `none` exists although gelu is 1.
void expect_gelu(const Op& op, size_t none);
/// Like expect_gelu, for the backward op, whose input `acc` must be absent if gelu is 1. Also
/// throws UserError unless input `sum`, the sum before GELU, exists if and only if gelu is 1, with
/// the shape of dx.
void expect_gelu_dx(const Graph& graph, const Op& op, size_t acc, size_t sum, const Shape& dx);

/// Throws UserError for an op with attr gelu=1. Autodiff needs graphs where GELU is a separate op.
void refuse_gradient(const Op& op);

inline double gelu_flops(const Graph& graph, const Op& op, double each) {
  return with_gelu(op) ? each * static_cast<double>(num_elements(graph.tensor(op.outputs[0]).shape))
                       : 0;
}

/// Adds the second output of an op with attr gelu=1 to its cuts (OpDef::axes), cut like the first.
std::vector<AxisTuple> and_gelu(const Op& op, std::vector<AxisTuple> tuples);

}  // namespace moe::ops
