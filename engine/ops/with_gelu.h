// What attr gelu=1 makes of a matrix product: GELU follows it in the same op. Forward: output 0 is
// the sum with its bias, output 1 GELU of that. Backward: dx is the product times the slope of GELU
// at the sum, which is one more input.
#pragma once

#include "engine/ops/rules.h"

namespace moe::ops {

/// Flops a number of GELU and of its gradient.
constexpr double kGeluFlops = 12, kGeluDxFlops = 20;

inline bool with_gelu(const Op& op) {
  return attr_int(op, "gelu") != 0;
}

/// Throws UserError unless attr gelu is 0 or 1 and, where it is 1, input `none` is absent.
void expect_gelu(const Op& op, size_t none);
/// The same in the backward, where the sum is input `sum`, of dx's shape.
void expect_gelu_dx(const Graph& graph, const Op& op, size_t acc, size_t sum, const Shape& dx);

/// Throws UserError for an op that GELU is in: gradients are made of graphs without such.
void refuse_gradient(const Op& op);

inline double gelu_flops(const Graph& graph, const Op& op, double each) {
  return with_gelu(op) ? each * static_cast<double>(num_elements(graph.tensor(op.outputs[0]).shape))
                       : 0;
}

/// OpDef::axes where the op has an output more, which is cut as the first.
std::vector<AxisTuple> and_gelu(const Op& op, std::vector<AxisTuple> tuples);

}  // namespace moe::ops
