#include "engine/ops/with_gelu.h"

namespace moe::ops {

void expect_gelu(const Op& op, size_t none) {
  const int64_t value = attr_int(op, "gelu");
  if (value != 0 && value != 1) {
    throw user_error("op '{}': attribute 'gelu' = {}, allowed: 0 or 1", op.name, value);
  }
  if (value == 1 && has(op, none)) {
    throw user_error("op '{}': input {} is not allowed with attribute 'gelu' = 1", op.name, none);
  }
}

void expect_gelu_dx(const Graph& graph, const Op& op, size_t acc, size_t sum, const Shape& dx) {
  expect_gelu(op, acc);
  if (with_gelu(op) != has(op, sum)) {
    throw user_error(
        "op '{}' ({}): input {}, the sum before GELU, must be given with attribute 'gelu' = 1, and "
        "only then",
        op.name, graph.def(op).name, sum);
  }
  expect_shape(graph, op, sum, dx);
}

void refuse_gradient(const Op& op) {
  if (!with_gelu(op)) return;
  throw user_error(
      "op '{}': attribute 'gelu' = 1 is not allowed in a graph that autodiff differentiates; use a "
      "separate op 'gelu'",
      op.name);
}

std::vector<AxisTuple> and_gelu(const Op& op, std::vector<AxisTuple> tuples) {
  if (!with_gelu(op)) return tuples;
  for (AxisTuple& tuple : tuples) tuple.outputs.push_back(tuple.outputs[0]);
  return tuples;
}

}  // namespace moe::ops
