// Adds one tensor to all blocks of its shape in another: a bias to rows, or the vectors of
// positions to sequences.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_add_rows(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 0);
  const Shape& w = expect_matrix(g, op, 1, 1);
  if (w.size() >= x.size() || !std::equal(w.rbegin(), w.rend(), x.rbegin())) {
    throw user_error("op '{}' (add_rows): input 1 '{}' is {}, expected the last axes of input 0 {}",
                     op.name, arg(g, op, 1).name, shape_text(w), shape_text(x));
  }
  expect_shape(g, op, 2, x);
  return {{x, arg(g, op, 0).dtype}};
}

void gradient_add_rows(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId dy = c.grad(op.outputs[0]), w = op.inputs[1], residual = input_or_none(op, 2);
  if (c.needs(op.inputs[0])) c.add(op.inputs[0], dy);
  if (c.needs(residual)) c.add(residual, dy);
  if (!c.needs(w)) return;
  const auto axes = static_cast<int64_t>(shape(c.graph(), op, 1).size());
  c.set(w, c.graph().out(c.emit(kAddRowsDw, "dw", {dy, c.grad(w)}, {{"axes", axes}}, true)));
}

/// Can be cut along the axes that only x has.
std::vector<AxisTuple> axes_add_rows(const Graph& g, const Op& op) {
  const size_t own = shape(g, op, 0).size() - shape(g, op, 1).size();
  std::vector<AxisTuple> tuples;
  for (int a = 0; a < static_cast<int>(own); ++a) tuples.push_back({{a, kWhole, a}, {a}});
  return tuples;
}

constexpr auto run_add_rows = []<class T>(const KernelCall<T>& c) {
  const int64_t all = num_elements(c.in_shape(0)), n = num_elements(c.in_shape(1));
  const T* added = c.in(0);
  if (c.in(2) != nullptr) {
    c.k.add(c.out(0), c.in(0), c.in(2), all, c.stream);
    added = c.out(0);
  }
  using W = kernels::Wide<T>;
  // A product of no columns is 0.
  const kernels::Product<T> sum = {
      all / n, n, 0, c.in(0), c.in(0), c.out(0), {.bias = c.wide(1), .add = added}};
  c.k.gemm_many(kernels::GemmVariant::kBatch, false, true, 1, &sum, W{1}, 0, 0, W{0}, n, c.stream);
};

std::vector<TensorSpec> infer_dw_add_rows(const Graph& g, const Op& op) {
  const Shape& dy = expect_matrix(g, op, 0);
  const int64_t axes = expect_attr(op, "axes", 1);
  if (axes >= static_cast<int64_t>(dy.size())) {
    throw user_error("op '{}' (add_rows_dw): attribute 'axes' = {}, allowed: 1 to {}", op.name,
                     axes, dy.size() - 1);
  }
  const Shape dw(dy.end() - axes, dy.end());
  expect_shape(g, op, 1, dw);
  return {{dw, gradient_dtype(op, arg(g, op, 0).dtype)}};
}

constexpr auto run_dw_add_rows = []<class T>(const KernelCall<T>& c) {
  const int64_t n = num_elements(c.out_shape(0));
  c.k.bias_grad(c.wide_out(0), c.in(0), c.wide(1), num_elements(c.in_shape(0)) / n, n, c.stream);
};

}  // namespace

const OpDef kAddRows = {.name = "add_rows",
                        .doc = "y = x + w [+ residual], w of the last axes of x",
                        .bound = Bound::kBytes,
                        .inputs = {{"x"}, {"w", Role::kBias}, optional("residual", Role::kAdded)},
                        .outputs = {{"y"}},
                        .infer = infer_add_rows,
                        .work = work_each<1, 0, 2>,
                        .gradient = gradient_add_rows,
                        .axes = axes_add_rows,
                        .may_alias = {{0, 0}, {0, 2}},
                        .run = any_type(run_add_rows)};

const OpDef kAddRowsDw = {.name = "add_rows_dw",
                          .doc = "dw = the sum of dy over all but its last attr axes axes [+ acc]",
                          .bound = Bound::kBytes,
                          .inputs = {{"dy"}, optional("acc", Role::kAdded)},
                          .outputs = {{"dw"}},
                          .infer = infer_dw_add_rows,
                          .work = work_each<1>,
                          .gradient = no_gradient,
                          .may_alias = {{0, 1}},
                          .run = any_type(run_dw_add_rows)};

}  // namespace moe::ops
