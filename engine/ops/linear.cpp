// linear is y = x w^T + bias + residual with w [out,in]; linear_dx and linear_dw are its gradients.
// bias_grad is the bias gradient of ops that add a bias without a GEMM.
#include "engine/ops/defs.h"
#include "engine/ops/expert_rows.h"
#include "engine/ops/rules.h"
#include "engine/ops/with_gelu.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_linear(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 0);
  expect_shape(g, op, 1, {kAny, cols_of(x)});
  Shape y = x;
  y.back() = shape(g, op, 1)[0];
  expect_shape(g, op, 2, {y.back()});
  expect_shape(g, op, 3, y);
  expect_gelu(op, 3);
  return std::vector<TensorSpec>(with_gelu(op) ? 2 : 1, {y, arg(g, op, 0).dtype});
}

/// 2 m n k flops for each of forward, dx and dw; the result is [m,n].
Work gemm_work(const Graph& g, const Op& op, MatrixWork::Of of, int64_t m, int64_t n, int64_t k,
               double gelu_each) {
  MatrixWork matrix =
      gemm_of(static_cast<double>(m), static_cast<double>(n), static_cast<double>(k), of);
  if (of == MatrixWork::Of::kDw) matrix.grad_bytes = gradient_bytes(g, op);
  return {.flops = 2 * matrix.m * matrix.n * matrix.k + gelu_flops(g, op, gelu_each),
          .bytes = io_bytes(g, op),
          .matrix = matrix};
}

Work work_linear(const Graph& g, const Op& op, const WorkContext&) {
  const Shape& w = shape(g, op, 1);
  return gemm_work(g, op, MatrixWork::Of::kResult, rows_of(shape(g, op, 0)), w[0], w[1],
                   kGeluFlops);
}

void gradient_linear(GradContext& c, OpId) {
  const Op op = c.op();
  refuse_gradient(op);
  const TensorId dy = c.grad(op.outputs[0]), x = op.inputs[0], w = op.inputs[1];
  const TensorId bias = input_or_none(op, 2), residual = input_or_none(op, 3);
  if (c.needs(residual)) c.add(residual, dy);
  if (c.needs(x)) c.set(x, c.graph().out(c.emit("linear_dx", "dx", {dy, w, c.grad(x)})));
  if (!c.needs(w) && !c.needs(bias)) return;
  Attrs attrs;
  if (bias.valid()) attrs["bias"] = int64_t{1};
  const TensorId bias_acc = bias.valid() ? c.grad(bias) : TensorId();
  const OpId dw = c.emit("linear_dw", "dw", {dy, x, c.grad(w), bias_acc}, attrs, true);
  c.set(w, c.graph().out(dw, 0));
  if (bias.valid()) c.set(bias, c.graph().out(dw, 1));
}

/// Can be cut along any row axis or the columns of y (rows of w); along `in`, y would be partial.
std::vector<AxisTuple> axes_linear(const Graph& g, const Op& op) {
  const int columns = static_cast<int>(shape(g, op, 0).size()) - 1;
  const auto tuple = [&op](int x, int w, int bias, int y) {
    AxisTuple cut{{x, w, has(op, 2) ? bias : kWhole, has(op, 3) ? y : kWhole}, {y}};
    cut.inputs.resize(op.inputs.size());
    return cut;
  };
  std::vector<AxisTuple> tuples;
  for (int a = 0; a < columns; ++a) tuples.push_back(tuple(a, kWhole, kWhole, a));
  tuples.push_back(tuple(kWhole, 0, 0, columns));
  return and_gelu(op, std::move(tuples));
}

constexpr auto run_linear = []<class T>(const KernelCall<T>& c) {
  using W = kernels::Wide<T>;
  const int64_t rows = rows_of(c.in_shape(0)), in = c.in_shape(1)[1], out = c.in_shape(1)[0];
  const auto product_at = [&](T* to, kernels::Epilogue<T> then) {
    return kernels::Product<T>{rows, out, in, c.in(0), c.matrix(1), to, then};
  };
  const kernels::Product<T> product =
      with_gelu(c.op) ? product_at(c.out(1), {.bias = c.wide(2), .before_gelu = c.out(0)})
                      : product_at(c.out(0), {.bias = c.wide(2), .add = c.in(3)});
  c.k.gemm_many(kernels::GemmVariant::kBatch, false, true, 1, &product, W{1}, in, in, W{0}, out,
                c.stream);
};

std::vector<TensorSpec> infer_dx_linear(const Graph& g, const Op& op) {
  const Shape& dy = expect_matrix(g, op, 0);
  expect_shape(g, op, 1, {cols_of(dy), kAny});
  Shape dx = dy;
  dx.back() = shape(g, op, 1)[1];
  if (op.attrs.contains("seq")) dx = token_shape(op, rows_of(dy), dx.back());
  expect_shape(g, op, 2, dx);
  expect_gelu_dx(g, op, 2, 3, dx);
  return {{dx, stored_dtype(op, arg(g, op, 0).dtype)}};
}

Work work_dx_linear(const Graph& g, const Op& op, const WorkContext&) {
  const Shape& w = shape(g, op, 1);
  return gemm_work(g, op, MatrixWork::Of::kDx, rows_of(shape(g, op, 0)), w[1], w[0], kGeluDxFlops);
}

constexpr auto run_dx_linear = []<class T>(const KernelCall<T>& c) {
  using W = kernels::Wide<T>;
  const int64_t rows = rows_of(c.in_shape(0)), out = c.in_shape(1)[0], in = c.in_shape(1)[1];
  const bool add = c.in(2) != nullptr;
  if (add) copy(c, c.out(0), c.in(2), rows * in);
  const kernels::Product<T> product = {
      rows, in, out, c.matrix(0), c.matrix(1), c.out(0), {.gelu_at = c.in(3)}};
  c.k.gemm_many(kernels::GemmVariant::kBatch, false, false, 1, &product, W{1}, out, in,
                add ? W{1} : W{0}, in, c.stream);
};

std::vector<TensorSpec> infer_dw_linear(const Graph& g, const Op& op) {
  const Shape& dy = expect_matrix(g, op, 0);
  const Shape& x = expect_matrix(g, op, 1);
  expect_rows(g, op, 1, rows_of(dy), cols_of(x));
  const int64_t out = expect_cols(g, op, cols_of(dy));
  const Shape dw = {out, cols_of(x)};
  const DType dtype = gradient_dtype(op, arg(g, op, 1).dtype);
  expect_shape(g, op, 2, dw);
  expect_shape(g, op, 3, {cols_of(dy)});
  std::vector<TensorSpec> specs = {{dw, dtype}};
  if (attr_int(op, "bias") != 0) specs.push_back({{cols_of(dy)}, dtype});
  return specs;
}

Work work_dw_linear(const Graph& g, const Op& op, const WorkContext&) {
  const Shape& dw = g.tensor(op.outputs[0]).shape;
  return gemm_work(g, op, MatrixWork::Of::kDw, dw[0], dw[1], rows_of(shape(g, op, 0)), 0);
}

constexpr auto run_dw_linear = []<class T>(const KernelCall<T>& c) {
  using W = kernels::Wide<T>;
  const int64_t rows = rows_of(c.in_shape(0)), out = c.out_shape(0)[0], in = c.out_shape(0)[1];
  const bool add = c.wide(2) != nullptr;
  if (add) copy(c, c.wide_out(0), c.wide(2), out * in);
  c.k.gemm(true, false, out, in, rows, W{1}, c.matrix(0), cols_of(c.in_shape(0)), c.in(1), in,
           add ? W{1} : W{0}, c.wide_out(0), in, c.stream);
  if (c.op.outputs.size() > 1) {
    c.k.bias_grad(c.wide_out(1), c.in(0), c.wide(3), rows, out, c.stream);
  }
};

std::vector<TensorSpec> infer_bias_grad(const Graph& g, const Op& op) {
  const Shape& dy = expect_matrix(g, op, 0);
  const int64_t groups = attr_int(op, "groups", 0);
  if (groups > 0 && (dy.size() < 3 || dy[0] != groups)) {
    throw user_error(
        "op '{}' (bias_grad): input 0 '{}' is {}, expected 3 or more axes, the first of length {} "
        "(attribute 'groups')",
        op.name, arg(g, op, 0).name, shape_text(dy), groups);
  }
  const Shape db = groups > 0 ? Shape{groups, cols_of(dy)} : Shape{cols_of(dy)};
  expect_shape(g, op, 1, db);
  expect_counts(g, op, 0, 2);
  return {{db, gradient_dtype(op, arg(g, op, 0).dtype)}};
}

Work work_bias_grad(const Graph& g, const Op& op, const WorkContext& context) {
  const double used = used_share(op, context);
  return {.flops = used * static_cast<double>(num_elements(shape(g, op, 0))),
          .bytes = io_bytes(g, op) - (1 - used) * static_cast<double>(g.bytes(op.inputs[0]))};
}

constexpr auto run_bias_grad = []<class T>(const KernelCall<T>& c) {
  const Shape& dy = c.in_shape(0);
  const int64_t groups = std::max<int64_t>(attr_int(c.op, "groups", 0), 1);
  const int64_t rows = rows_of(dy) / groups, cols = cols_of(dy);
  if (counts_rows(c.op)) {
    start_from(c, c.wide_out(0), c.wide(1), groups * cols);
    for_each_run(c, blocks_of(c.graph, c.op, 0), c.in_i32(2), nullptr,
                 [&](int64_t e, int64_t first, int64_t n) {
                   auto* const db = c.wide_out(0) + e * cols;
                   c.k.bias_grad(db, c.in(0) + first * cols, db, n, cols, c.stream);
                 });
    return;
  }
  for (int64_t e = 0; e < groups; ++e) {
    const auto* acc = c.wide(1) == nullptr ? nullptr : c.wide(1) + e * cols;
    c.k.bias_grad(c.wide_out(0) + e * cols, c.in(0) + e * rows * cols, acc, rows, cols, c.stream);
  }
};

}  // namespace

const OpDef kLinear = {
    .name = "linear",
    .doc = "y = x w^T [+ bias] [+ residual], w [out,in]; with attr gelu=1 also GELU(y)",
    .bound = Bound::kFlops,
    .inputs = {{"x"}, {"w"}, optional("bias", Role::kBias), optional("residual", Role::kAdded)},
    .outputs = {{"y"}, with("gelu", "z")},
    .infer = infer_linear,
    .work = work_linear,
    .gradient = gradient_linear,
    .axes = axes_linear,
    .rounds = {1},
    .run = any_type(run_linear)};

const OpDef kLinearDx = {
    .name = "linear_dx",
    .doc =
        "dx = dy w [+ acc]; attr seq gives dx the shape [rows/seq, seq, in]; with attr gelu=1 dx "
        "is multiplied by GELU'(sum)",
    .bound = Bound::kFlops,
    .inputs = {{"dy"}, {"w"}, optional("acc", Role::kAdded), with("gelu", "sum", Role::kSum)},
    .outputs = {{"dx"}},
    .infer = infer_dx_linear,
    .work = work_dx_linear,
    .gradient = no_gradient,
    .may_alias = {{0, 2}},
    .rounds = {0, 1},
    .run = any_type(run_dx_linear)};

const OpDef kLinearDw = {.name = "linear_dw",
                         .doc =
                             "dw = dy^T x [+ acc]; with attr bias=1 also db = column sums of dy; "
                             "with attr cols only of the first cols columns of dy",
                         .bound = Bound::kFlops,
                         .inputs = {{"dy"}, {"x"}, optional("acc_w"), optional("acc_b")},
                         .outputs = {{"dw"}, with("bias", "db")},
                         .infer = infer_dw_linear,
                         .work = work_dw_linear,
                         .gradient = no_gradient,
                         .may_alias = {{0, 2}, {1, 3}},
                         .rounds = {0},
                         .run = any_type(run_dw_linear)};

const OpDef kBiasGrad = {
    .name = "bias_grad",
    .doc =
        "db = column sums of dy [+ acc], separately for each of attr groups; with attr rows = "
        "\"used\" only of the rows in use",
    .bound = Bound::kBytes,
    .inputs = {{"dy"}, optional("acc", Role::kAdded), optional("recv_counts", Role::kRecvCounts)},
    .outputs = {{"db"}},
    .infer = infer_bias_grad,
    .work = work_bias_grad,
    .gradient = no_gradient,
    .may_alias = {{0, 1}},
    .run = any_type(run_bias_grad),
    .host_inputs = counted<2>};

}  // namespace moe::ops
