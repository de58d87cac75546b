// RMSNorm of each group of n columns of the last axis, where n is the length of gamma: of whole
// rows, or of the heads in a row (q and k of some models).
#include <algorithm>

#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

/// Returns the number of groups of n columns that input x has, n being the length of input gamma.
int64_t groups_of_rmsnorm(const Graph& g, const Op& op, size_t x, size_t gamma) {
  return num_elements(shape(g, op, x)) / cols_of(shape(g, op, gamma));
}

/// Throws UserError unless input `gamma` is one axis whose length divides the last axis of input x.
void expect_gamma(const Graph& g, const Op& op, size_t x, size_t gamma) {
  const int64_t cols = cols_of(expect_matrix(g, op, x));
  expect_shape(g, op, gamma, {kAny});
  const int64_t n = shape(g, op, gamma)[0];
  if (cols % n == 0) return;
  throw user_error(
      "op '{}' ({}): input {} '{}' is {}, allowed: a length that divides the last axis of '{}' {}",
      op.name, g.def(op).name, gamma, arg(g, op, gamma).name, shape_text(shape(g, op, gamma)),
      arg(g, op, x).name, shape_text(shape(g, op, x)));
}

double eps_of(const Op& op) {
  const double eps = attr_double(op, "eps", 0);
  if (!(eps > 0)) {
    throw user_error("op '{}': attribute 'eps' is {}, allowed: above 0, such as 1e-6", op.name,
                     eps);
  }
  return eps;
}

std::vector<TensorSpec> infer_rmsnorm(const Graph& g, const Op& op) {
  expect_gamma(g, op, 0, 1);
  eps_of(op);
  const DType dtype = arg(g, op, 0).dtype;
  return {{shape(g, op, 0), dtype}, {{groups_of_rmsnorm(g, op, 0, 1)}, stats_dtype(dtype)}};
}

void gradient_rmsnorm(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId x = op.inputs[0], gamma = op.inputs[1];
  const TensorId dy = c.grad(op.outputs[0]), rstd = op.outputs[1];
  if (c.needs(x)) {
    c.set(x, c.graph().out(c.emit(kRmsnormDx, "dx", {dy, x, rstd, gamma, c.grad(x)})));
  }
  if (c.needs(gamma)) {
    const OpId dw = c.emit(kRmsnormDw, "dw", {dy, x, rstd, c.grad(gamma)}, {}, true);
    c.set(gamma, c.graph().out(dw));
  }
}

/// Can be cut along the batch only: in the flat axis of rstd, no other cut is contiguous.
std::vector<AxisTuple> axes_rmsnorm(const Graph&, const Op&) {
  return {{{0, kWhole}, {0, 0}}};
}

constexpr auto run_rmsnorm = []<class T>(const KernelCall<T>& c) {
  c.k.rmsnorm(c.out(0), c.wide_out(1), c.in(0), c.wide(1),
              static_cast<kernels::Wide<T>>(eps_of(c.op)), groups_of_rmsnorm(c.graph, c.op, 0, 1),
              cols_of(c.in_shape(1)), c.stream);
};

std::vector<TensorSpec> infer_dx_rmsnorm(const Graph& g, const Op& op) {
  expect_gamma(g, op, 1, 3);
  const Shape& x = shape(g, op, 1);
  expect_shape(g, op, 0, x);
  expect_shape(g, op, 2, {groups_of_rmsnorm(g, op, 1, 3)});
  expect_shape(g, op, 4, x);
  return {{x, arg(g, op, 1).dtype}};
}

constexpr auto run_dx_rmsnorm = []<class T>(const KernelCall<T>& c) {
  c.k.rmsnorm_dx(c.out(0), c.in(0), c.in(1), c.wide(2), c.wide(3), c.in(4),
                 groups_of_rmsnorm(c.graph, c.op, 1, 3), cols_of(c.in_shape(3)), c.stream);
};

std::vector<TensorSpec> infer_dw_rmsnorm(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 1);
  expect_shape(g, op, 0, x);
  expect_shape(g, op, 2, {kAny});
  const int64_t groups = shape(g, op, 2)[0], heads = std::max<int64_t>(1, groups / rows_of(x));
  expect_shape(g, op, 2, {rows_of(x) * heads});
  const int64_t cols = cols_of(x) / heads;
  if (cols * heads != cols_of(x)) {
    throw user_error(
        "op '{}' ({}): input 2 '{}' has {} elements per row of '{}' {}, allowed: a divisor of its "
        "last axis",
        op.name, g.def(op).name, arg(g, op, 2).name, heads, arg(g, op, 1).name, shape_text(x));
  }
  expect_shape(g, op, 3, {cols});
  return {{{cols}, gradient_dtype(op, arg(g, op, 1).dtype)}};
}

constexpr auto run_dw_rmsnorm = []<class T>(const KernelCall<T>& c) {
  c.k.rmsnorm_dw(c.wide_out(0), c.in(0), c.in(1), c.wide(2), c.wide(3), num_elements(c.in_shape(2)),
                 cols_of(c.out_shape(0)), c.stream);
};

}  // namespace

const OpDef kRmsnorm = {.name = "rmsnorm",
                        .doc =
                            "y = x * rstd * gamma, rstd = 1 / sqrt(mean of x^2 + attr eps) of "
                            "every group of columns as long as gamma",
                        .bound = Bound::kBytes,
                        .inputs = {{"x"}, {"gamma"}},
                        .outputs = {{"y"}, {"rstd"}},
                        .infer = infer_rmsnorm,
                        .work = work_each<4>,
                        .gradient = gradient_rmsnorm,
                        .axes = axes_rmsnorm,
                        .run = any_type(run_rmsnorm)};

const OpDef kRmsnormDx = {
    .name = "rmsnorm_dx",
    .doc = "gradient of rmsnorm's input [+ acc]",
    .bound = Bound::kBytes,
    .inputs = {{"dy"}, {"x"}, {"rstd"}, {"gamma"}, optional("acc", Role::kAdded)},
    .outputs = {{"dx"}},
    .infer = infer_dx_rmsnorm,
    .work = work_each<8, 0, 4>,
    .gradient = no_gradient,
    .may_alias = {{0, 4}},
    .run = any_type(run_dx_rmsnorm)};

const OpDef kRmsnormDw = {.name = "rmsnorm_dw",
                          .doc = "gradient of gamma [+ acc]",
                          .bound = Bound::kBytes,
                          .inputs = {{"dy"}, {"x"}, {"rstd"}, optional("acc")},
                          .outputs = {{"dgamma"}},
                          .infer = infer_dw_rmsnorm,
                          .work = work_each<3>,
                          .gradient = no_gradient,
                          .may_alias = {{0, 3}},
                          .run = any_type(run_dw_rmsnorm)};

}  // namespace moe::ops
