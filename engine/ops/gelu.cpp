// GELU in its tanh form, of x or x + bias.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

/// x [..,n] takes a bias [n]; x [El,..,n] one [El,n], a row a leading index.
void expect_bias(const Graph& g, const Op& op, size_t x, size_t bias) {
  if (!has(op, bias)) return;
  const Shape& have = expect_matrix(g, op, x);
  if (shape(g, op, bias).size() == 2) {
    expect_shape(g, op, bias, {have[0], cols_of(have)});
  } else {
    expect_shape(g, op, bias, {cols_of(have)});
  }
}

/// How many blocks of rows have a bias of their own.
int64_t groups_of(const Graph& g, const Op& op, size_t bias) {
  return has(op, bias) && shape(g, op, bias).size() == 2 ? shape(g, op, bias)[0] : 1;
}

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 0);
  expect_bias(g, op, 0, 1);
  return {{x, arg(g, op, 0).dtype}};
}

template <int flops_an_element>
Work work(const Graph& g, const Op& op, const WorkContext&) {
  return elementwise_work(g, op,
                          flops_an_element * static_cast<double>(num_elements(shape(g, op, 0))));
}

void gradient(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId x = op.inputs[0], bias = input_or_none(op, 1);
  if (!c.needs(x) && !c.needs(bias)) return;
  const TensorId dx = c.graph().out(c.emit("gelu_dx", "dx", {c.grad(op.outputs[0]), x, bias}));
  if (c.needs(x)) c.add(x, dx);
  if (!c.needs(bias)) return;
  Attrs attrs;
  if (shape(c.graph(), op, 1).size() == 2) attrs["groups"] = shape(c.graph(), op, 1)[0];
  c.set(bias, c.graph().out(c.emit("bias_grad", "dw", {dx, c.grad(bias)}, attrs, true)));
}

template <class T>
void run(const KernelCall<T>& c) {
  const int64_t groups = groups_of(c.graph, c.op, 1), cols = cols_of(c.in_shape(0));
  const int64_t rows = rows_of(c.in_shape(0)) / groups;
  for (int64_t e = 0; e < groups; ++e) {
    const T* bias = c.in(1) == nullptr ? nullptr : c.in(1) + e * cols;
    c.k.gelu(c.out(0) + e * rows * cols, c.in(0) + e * rows * cols, bias, rows, cols, c.stream);
  }
}

std::vector<TensorSpec> infer_dx(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 1);
  expect_shape(g, op, 0, x);
  expect_bias(g, op, 1, 2);
  return {{x, arg(g, op, 1).dtype}};
}

template <class T>
void run_dx(const KernelCall<T>& c) {
  const int64_t groups = groups_of(c.graph, c.op, 2), cols = cols_of(c.in_shape(1));
  const int64_t rows = rows_of(c.in_shape(1)) / groups;
  for (int64_t e = 0; e < groups; ++e) {
    const int64_t at = e * rows * cols;
    const T* bias = c.in(2) == nullptr ? nullptr : c.in(2) + e * cols;
    c.k.gelu_dx(c.out(0) + at, c.in(0) + at, c.in(1) + at, bias, rows, cols, c.stream);
  }
}

}  // namespace

const OpDef kGelu = {.name = "gelu",
                     .doc = "y = GELU(x [+ bias]), tanh form; bias [n], or [El,n] with x [El,..,n]",
                     .min_inputs = 1,
                     .max_inputs = 2,
                     .infer = infer,
                     .work = work<12>,
                     .gradient = gradient,
                     .run_f32 = run<float>,
                     .run_f64 = run<double>};

const OpDef kGeluDx = {.name = "gelu_dx",
                       .doc = "dx = dy GELU'(x [+ bias])",
                       .min_inputs = 2,
                       .max_inputs = 3,
                       .infer = infer_dx,
                       .work = work<20>,
                       .may_alias = {{0, 0}},
                       .run_f32 = run_dx<float>,
                       .run_f64 = run_dx<double>};

}  // namespace moe::ops
