// GELU in its tanh form, of x or of x + bias; with attr rows = "used" only of the rows in use.
#include "engine/ops/defs.h"
#include "engine/ops/each_row.h"
#include "engine/ops/rules.h"
#include "engine/ops/with_gelu.h"

namespace moe::ops {
namespace {

/// Throws UserError unless the bias is [n], or [El,n] with one row per first index of x [El,..,n].
void expect_bias(const Graph& g, const Op& op, size_t x, size_t bias) {
  if (!has(op, bias)) return;
  const Shape& have = expect_matrix(g, op, x);
  if (shape(g, op, bias).size() == 2) {
    expect_shape(g, op, bias, {have[0], cols_of(have)});
  } else {
    expect_shape(g, op, bias, {cols_of(have)});
  }
}

/// Returns the number of row blocks with separate biases: El for a bias [El,n], else 1.
int64_t groups_of_gelu(const Graph& g, const Op& op, size_t bias) {
  return has(op, bias) && shape(g, op, bias).size() == 2 ? shape(g, op, bias)[0] : 1;
}

std::vector<TensorSpec> infer_gelu(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 0);
  expect_bias(g, op, 0, 1);
  expect_row_counts(g, op, 0);
  return {rows_like(arg(g, op, 0), x)};
}

double elements_gelu(const Graph& g, const Op& op) {
  return static_cast<double>(num_elements(shape(g, op, 0)));
}

Work work_gelu(const Graph& g, const Op& op, const WorkContext& context) {
  return each_row_work(g, op, context, kGeluFlops * elements_gelu(g, op));
}

Work work_dx_gelu(const Graph& g, const Op& op, const WorkContext& context) {
  return each_row_work(g, op, context, kGeluDxFlops * elements_gelu(g, op));
}

/// Can be cut along any axis, together with the bias where it has that axis; with rows = "used",
/// along the rows in use.
std::vector<AxisTuple> axes_gelu(const Graph& g, const Op& op) {
  if (only_used(op)) return used_row_cuts(g, op, {0});
  if (op.rows.is_cut()) return {};
  const int rank = static_cast<int>(shape(g, op, 0).size());
  const int bias_rank = has(op, 1) ? static_cast<int>(shape(g, op, 1).size()) : 0;
  std::vector<AxisTuple> tuples;
  for (int a = 0; a < rank; ++a) {
    int bias = kWhole;
    if (a == rank - 1 && bias_rank > 0) bias = bias_rank - 1;
    if (a == 0 && bias_rank == 2) bias = 0;
    tuples.push_back({{a, bias, kWhole, kWhole}, {a}});
  }
  return tuples;
}

/// Calls f(first element, number of rows, its bias or null) for each run of rows to compute.
template <class T, class F>
void for_each_group(const KernelCall<T>& c, size_t x, size_t bias, F f) {
  const int64_t cols = cols_of(c.in_shape(x)), groups = groups_of_gelu(c.graph, c.op, bias);
  for_each_rows(c, x, groups, [&](int64_t first, int64_t rows, int64_t e) {
    const auto* all = c.wide(bias);
    f(first * cols, rows, all == nullptr || groups == 1 ? all : all + e * cols);
  });
}

void gradient_gelu(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId x = op.inputs[0], bias = input_or_none(op, 1);
  if (!c.needs(x) && !c.needs(bias)) return;
  std::vector<TensorId> inputs = {c.grad(op.outputs[0]), x, bias};
  const Attrs rows = same_rows(c.graph(), op, inputs);
  const TensorId dx = c.graph().out(c.emit("gelu_dx", "dx", inputs, rows));
  if (c.needs(x)) c.add(x, dx);
  if (!c.needs(bias)) return;
  Attrs attrs;
  std::vector<TensorId> summed = {dx, c.grad(bias)};
  if (op.rows.loose || op.rows.is_cut()) {
    attrs = rows;
    summed.push_back(op.inputs[2]);
  }
  if (shape(c.graph(), op, 1).size() == 2) attrs["groups"] = shape(c.graph(), op, 1)[0];
  c.set(bias, c.graph().out(c.emit("bias_grad", "dw", summed, attrs, true)));
}

constexpr auto run_gelu = []<class T>(const KernelCall<T>& c) {
  const int64_t cols = cols_of(c.in_shape(0));
  for_each_group(c, 0, 1, [&](int64_t at, int64_t rows, const auto* bias) {
    c.k.gelu(c.out(0) + at, c.in(0) + at, bias, rows, cols, c.stream);
  });
};

std::vector<TensorSpec> infer_dx_gelu(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 1);
  expect_shape(g, op, 0, x);
  expect_bias(g, op, 1, 2);
  expect_row_counts(g, op, 1);
  return {rows_like(arg(g, op, 1), x)};
}

constexpr auto run_dx_gelu = []<class T>(const KernelCall<T>& c) {
  const int64_t cols = cols_of(c.in_shape(1));
  for_each_group(c, 1, 2, [&](int64_t at, int64_t rows, const auto* bias) {
    c.k.gelu_dx(c.out(0) + at, c.in(0) + at, c.in(1) + at, bias, rows, cols, c.stream);
  });
};

}  // namespace

const OpDef kGelu = {.name = "gelu",
                     .doc = "y = GELU(x [+ bias]), tanh form; bias [n], or [El,n] with x [El,..,n]",
                     .basic = BasicOp::kGelu,
                     .bound = Bound::kBytes,
                     .inputs = {{"x", Role::kSum},
                                optional("bias", Role::kBias),
                                optional("recv_counts", Role::kRecvCounts),
                                optional("recv_begin", Role::kRecvBegin)},
                     .outputs = {{"y"}},
                     .infer = infer_gelu,
                     .work = work_gelu,
                     .gradient = gradient_gelu,
                     .axes = axes_gelu,
                     .begins = {{.input = 3, .of_input = 2}},
                     .rows_end = end_of_rows,
                     .only_used_rows = only_used,
                     .run = any_type(run_gelu),
                     .host_inputs = counted<2, 3>};

const OpDef kGeluDx = {.name = "gelu_dx",
                       .doc = "dx = dy GELU'(x [+ bias])",
                       .basic = BasicOp::kGeluDx,
                       .bound = Bound::kBytes,
                       .inputs = {{"dy"},
                                  {"x", Role::kSum},
                                  optional("bias", Role::kBias),
                                  optional("recv_counts", Role::kRecvCounts)},
                       .outputs = {{"dx"}},
                       .infer = infer_dx_gelu,
                       .work = work_dx_gelu,
                       .gradient = no_gradient,
                       .may_alias = {{0, 0}},
                       .run = any_type(run_dx_gelu),
                       .host_inputs = counted<3>};

}  // namespace moe::ops
