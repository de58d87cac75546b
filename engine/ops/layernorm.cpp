// LayerNorm over the last axis, with eps 1e-5 and biased variance.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_layernorm(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 0);
  expect_shape(g, op, 1, {cols_of(x)});
  expect_shape(g, op, 2, {cols_of(x)});
  const DType dtype = arg(g, op, 0).dtype, stats = stats_dtype(dtype);
  return {{x, dtype}, {{rows_of(x)}, stats}, {{rows_of(x)}, stats}};
}

void gradient_layernorm(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId x = op.inputs[0], gamma = op.inputs[1], beta = op.inputs[2];
  const TensorId dy = c.grad(op.outputs[0]), mean = op.outputs[1], rstd = op.outputs[2];
  if (c.needs(x)) {
    const OpId dx = c.emit("layernorm_dx", "dx", {dy, x, mean, rstd, gamma, c.grad(x)});
    c.set(x, c.graph().out(dx));
  }
  if (c.needs(gamma) || c.needs(beta)) {
    const OpId dw =
        c.emit("layernorm_dw", "dw", {dy, x, mean, rstd, c.grad(gamma), c.grad(beta)}, {}, true);
    c.set(gamma, c.graph().out(dw, 0));
    c.set(beta, c.graph().out(dw, 1));
  }
}

/// Can be cut along the batch only: in the flat axis of mean and rstd, no other cut is contiguous.
std::vector<AxisTuple> axes_layernorm(const Graph&, const Op&) {
  return {{{0, kWhole, kWhole}, {0, 0, 0}}};
}

constexpr auto run_layernorm = []<class T>(const KernelCall<T>& c) {
  const Shape& x = c.in_shape(0);
  c.k.layernorm(c.out(0), c.wide_out(1), c.wide_out(2), c.in(0), c.wide(1), c.wide(2), rows_of(x),
                cols_of(x), c.stream);
};

/// Checks inputs dy, x, mean and rstd, the first four of both backward ops. Throws UserError.
void expect_saved(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 1);
  expect_shape(g, op, 0, x);
  expect_shape(g, op, 2, {rows_of(x)});
  expect_shape(g, op, 3, {rows_of(x)});
}

std::vector<TensorSpec> infer_dx_layernorm(const Graph& g, const Op& op) {
  expect_saved(g, op);
  const Shape& x = shape(g, op, 1);
  expect_shape(g, op, 4, {cols_of(x)});
  expect_shape(g, op, 5, x);
  return {{x, arg(g, op, 1).dtype}};
}

constexpr auto run_dx_layernorm = []<class T>(const KernelCall<T>& c) {
  const Shape& x = c.in_shape(1);
  c.k.layernorm_dx(c.out(0), c.in(0), c.in(1), c.wide(2), c.wide(3), c.wide(4), c.in(5), rows_of(x),
                   cols_of(x), c.stream);
};

std::vector<TensorSpec> infer_dw_layernorm(const Graph& g, const Op& op) {
  expect_saved(g, op);
  const int64_t cols = cols_of(shape(g, op, 1));
  const DType dtype = gradient_dtype(op, arg(g, op, 1).dtype);
  expect_shape(g, op, 4, {cols});
  expect_shape(g, op, 5, {cols});
  return {{{cols}, dtype}, {{cols}, dtype}};
}

constexpr auto run_dw_layernorm = []<class T>(const KernelCall<T>& c) {
  const Shape& x = c.in_shape(1);
  c.k.layernorm_dw(c.wide_out(0), c.wide_out(1), c.in(0), c.in(1), c.wide(2), c.wide(3), c.wide(4),
                   c.wide(5), rows_of(x), cols_of(x), c.stream);
};

}  // namespace

const OpDef kLayernorm = {.name = "layernorm",
                          .doc = "y = (x - mean) * rstd * gamma + beta over the last axis",
                          .bound = Bound::kBytes,
                          .inputs = {{"x"}, {"gamma"}, {"beta"}},
                          .outputs = {{"y"}, {"mean"}, {"rstd"}},
                          .infer = infer_layernorm,
                          .work = work_each<8>,
                          .gradient = gradient_layernorm,
                          .axes = axes_layernorm,
                          .run = any_type(run_layernorm)};

const OpDef kLayernormDx = {
    .name = "layernorm_dx",
    .doc = "gradient of layernorm's input [+ acc]",
    .bound = Bound::kBytes,
    .inputs = {{"dy"}, {"x"}, {"mean"}, {"rstd"}, {"gamma"}, optional("acc", Role::kAdded)},
    .outputs = {{"dx"}},
    .infer = infer_dx_layernorm,
    .work = work_each<12, 0, 5>,
    .gradient = no_gradient,
    .may_alias = {{0, 5}},
    .run = any_type(run_dx_layernorm)};

const OpDef kLayernormDw = {
    .name = "layernorm_dw",
    .doc = "gradients of gamma and beta [+ acc]",
    .bound = Bound::kBytes,
    .inputs = {{"dy"}, {"x"}, {"mean"}, {"rstd"}, optional("acc_gamma"), optional("acc_beta")},
    .outputs = {{"dgamma"}, {"dbeta"}},
    .infer = infer_dw_layernorm,
    .work = work_each<5>,
    .gradient = no_gradient,
    .may_alias = {{0, 4}, {1, 5}},
    .run = any_type(run_dw_layernorm)};

}  // namespace moe::ops
