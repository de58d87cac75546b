// The linear layers of this rank's experts: x [El,P,C,in] (or [El,C,in]), w [El,out,in]. With
// rows = "used" only the number of rows in recv_counts [El,P] is computed; the others are zero. The
// products of all experts of a rank are one kernel call.
#include "engine/ops/defs.h"
#include "engine/ops/expert_rows.h"
#include "engine/ops/rules.h"
#include "engine/ops/with_gelu.h"

namespace moe::ops {
namespace {

/// Returns how a device runs the products: as a batch where all experts have equally many rows.
kernels::GemmVariant gemm_variant(const Op& op) {
  return only_used(op) ? kernels::GemmVariant::kStreams : kernels::GemmVariant::kBatch;
}

/// Returns an empty list that belongs to this thread; the next call on the thread clears it.
template <class T>
std::vector<kernels::Product<T>>& no_products() {
  thread_local std::vector<kernels::Product<T>> products;
  products.clear();
  return products;
}

/// Returns the shape of the rows, input i. Throws UserError if they, `counts` or attrs are wrong.
const Shape& expect_blocks_expert_linear(const Graph& g, const Op& op, size_t i, size_t counts) {
  const Shape& x = expect_matrix(g, op, i, 3);
  if (x.size() > 4) expect_shape(g, op, i, {kAny, kAny, kAny, kAny});
  only_used(op);  // throws if the attribute is wrong
  expect_counts(g, op, i, counts);
  return x;
}

/// Work of the products. Row tensors count in proportion to the rows in use, weights and biases in
/// full. `row_inputs`: which inputs are row tensors; the outputs are, but for gradients of weights.
Work gemms_work(const Graph& g, const Op& op, const WorkContext& context, MatrixWork::Of of,
                const Shape& w, std::initializer_list<size_t> row_inputs, double gelu_each = 0) {
  const bool out = of != MatrixWork::Of::kDw;
  const double share = used_share(op, context);
  double unused = 0;
  for (const size_t i : row_inputs) {
    if (has(op, i)) unused += (1 - share) * static_cast<double>(g.bytes(op.inputs[i]));
  }
  for (const TensorId t : op.outputs) {
    if (out) unused += (1 - share) * static_cast<double>(g.bytes(t));
  }
  const auto rows = static_cast<double>(rows_of(shape(g, op, 0)) / w[0]);
  return {.flops = share * (2.0 * rows * static_cast<double>(num_elements(w)) +
                            gelu_flops(g, op, gelu_each)),
          .bytes = io_bytes(g, op) - unused,
          .matrix = {.kind = MatrixWork::Kind::kExperts,
                     .of = of,
                     .n = static_cast<double>(w[1]),
                     .k = static_cast<double>(w[2]),
                     .experts = static_cast<double>(w[0]),
                     .rows = share * rows,
                     .grad_bytes = out ? 0 : gradient_bytes(g, op)}};
}

/// Can be cut along counted rows (rows = "used"); otherwise along the capacity, which is the axis
/// before the last, or along the output features.
std::vector<AxisTuple> axes_expert_linear(const Graph& g, const Op& op) {
  if (only_used(op)) {
    return and_gelu(op, {{{kRows, kWhole, kWhole, kRowEnds, kWhole}, {kRows}},
                         {{kWhole, kWhole, kWhole, kRowEnds, kWhole}, {kRows}}});
  }
  if (op.rows.is_cut()) return {};
  const int last = static_cast<int>(shape(g, op, 0).size()) - 1;
  return and_gelu(op, {{{last - 1, kWhole, kWhole, kWhole, kWhole}, {last - 1}},
                       {{kWhole, 1, 1, kWhole, kWhole}, {last}}});
}

std::vector<TensorSpec> infer_expert_linear(const Graph& g, const Op& op) {
  const Shape& x = expect_blocks_expert_linear(g, op, 0, 3);
  if (has(op, 4)) expect_index(g, op, 4, shape(g, op, 3));
  expect_shape(g, op, 1, {x[0], kAny, cols_of(x)});
  Shape y = x;
  y.back() = shape(g, op, 1)[1];
  expect_shape(g, op, 2, {x[0], y.back()});
  expect_gelu(op, op.inputs.size());
  return std::vector<TensorSpec>(with_gelu(op) ? 2 : 1, rows_like(arg(g, op, 0), y));
}

Work work_expert_linear(const Graph& g, const Op& op, const WorkContext& context) {
  return gemms_work(g, op, context, MatrixWork::Of::kResult, shape(g, op, 1), {0}, kGeluFlops);
}

void gradient_expert_linear(GradContext& c, OpId) {
  const Op op = c.op();
  refuse_gradient(op);
  const TensorId dy = c.grad(op.outputs[0]), x = op.inputs[0], w = op.inputs[1];
  const TensorId bias = input_or_none(op, 2), counts = input_or_none(op, 3);
  Attrs attrs = row_attrs(op);
  attrs["rows"] = attr_string(op, "rows", "capacity");
  if (c.needs(x)) {
    const OpId dx = c.emit("expert_linear_dx", "dx", {dy, w, c.grad(x), counts}, attrs);
    c.set(x, c.graph().out(dx));
  }
  if (!c.needs(w) && !c.needs(bias)) return;
  Attrs dw_attrs = attrs;
  if (bias.valid()) dw_attrs["bias"] = int64_t{1};
  const TensorId bias_acc = bias.valid() ? c.grad(bias) : TensorId();
  const OpId dw =
      c.emit("expert_linear_dw", "dw", {dy, x, c.grad(w), bias_acc, counts}, dw_attrs, true);
  c.set(w, c.graph().out(dw, 0));
  if (bias.valid()) c.set(bias, c.graph().out(dw, 1));
}

constexpr auto run_expert_linear = []<class T>(const KernelCall<T>& c) {
  const Blocks b = blocks_of(c.graph, c.op, 0);
  const int64_t out = c.in_shape(1)[1], in = c.in_shape(1)[2];
  using W = kernels::Wide<T>;
  const bool adds = c.rank.rank % attr_int(c.op, "bias_of", 1) == 0;
  const W* const bias = adds ? c.wide(2) : nullptr;
  const bool gelu = with_gelu(c.op);
  auto& products = no_products<T>();
  for_each_run(c, b, c.in_i32(3), c.in_i32(4), [&](int64_t e, int64_t first, int64_t rows) {
    T* const y = c.out(0) + first * out;
    products.push_back(
        {rows,
         out,
         in,
         c.in(0) + first * in,
         c.matrix(1) + e * out * in,
         gelu ? c.out(1) + first * out : y,
         {.bias = bias == nullptr ? nullptr : bias + e * out, .before_gelu = gelu ? y : nullptr}});
  });
  c.k.gemm_many(gemm_variant(c.op), false, true, static_cast<int64_t>(products.size()),
                products.data(), W{1}, in, in, W{0}, out, c.stream);
  zero_unused(c, c.out(0), b, c.in_i32(3), out);
  if (gelu) zero_unused(c, c.out(1), b, c.in_i32(3), out);
};

std::vector<TensorSpec> infer_dx_expert_linear(const Graph& g, const Op& op) {
  const Shape& dy = expect_blocks_expert_linear(g, op, 0, 3);
  expect_shape(g, op, 1, {dy[0], cols_of(dy), kAny});
  Shape dx = dy;
  dx.back() = shape(g, op, 1)[2];
  expect_shape(g, op, 2, dx);
  expect_gelu_dx(g, op, 2, 4, dx);
  return {rows_like(arg(g, op, 0), dx)};
}

Work work_dx_expert_linear(const Graph& g, const Op& op, const WorkContext& context) {
  return gemms_work(g, op, context, MatrixWork::Of::kDx, shape(g, op, 1), {0, 2, 4}, kGeluDxFlops);
}

constexpr auto run_dx_expert_linear = []<class T>(const KernelCall<T>& c) {
  const Blocks b = blocks_of(c.graph, c.op, 0);
  const int64_t out = c.in_shape(1)[1], in = c.in_shape(1)[2];
  using W = kernels::Wide<T>;
  const T *acc = c.in(2), *const sum = c.in(4);
  if (acc != nullptr) copy(c, c.out(0), acc, stored_elements(c.graph.tensor(c.op.outputs[0])));
  auto& products = no_products<T>();
  for_each_run(c, b, c.in_i32(3), nullptr, [&](int64_t e, int64_t first, int64_t rows) {
    products.push_back({rows,
                        in,
                        out,
                        c.in(0) + first * out,
                        c.matrix(1) + e * out * in,
                        c.out(0) + first * in,
                        {.gelu_at = sum == nullptr ? nullptr : sum + first * in}});
  });
  c.k.gemm_many(gemm_variant(c.op), false, false, static_cast<int64_t>(products.size()),
                products.data(), W{1}, out, in, acc != nullptr ? W{1} : W{0}, in, c.stream);
  if (acc == nullptr) zero_unused(c, c.out(0), b, c.in_i32(3), in);
};

std::vector<TensorSpec> infer_dw_expert_linear(const Graph& g, const Op& op) {
  const Shape& dy = expect_blocks_expert_linear(g, op, 0, 4);
  Shape x = dy;
  x.back() = kAny;
  expect_shape(g, op, 1, x);
  const Shape dw = {dy[0], cols_of(dy), cols_of(shape(g, op, 1))};
  const Shape db = {dy[0], cols_of(dy)};
  expect_shape(g, op, 2, dw);
  expect_shape(g, op, 3, db);
  const DType dtype = gradient_dtype(op, arg(g, op, 1).dtype);
  std::vector<TensorSpec> specs = {{dw, dtype}};
  if (attr_int(op, "bias") != 0) specs.push_back({db, dtype});
  return specs;
}

Work work_dw_expert_linear(const Graph& g, const Op& op, const WorkContext& context) {
  return gemms_work(g, op, context, MatrixWork::Of::kDw, g.tensor(op.outputs[0]).shape, {0, 1});
}

constexpr auto run_dw_expert_linear = []<class T>(const KernelCall<T>& c) {
  const Blocks b = blocks_of(c.graph, c.op, 0);
  const int64_t out = c.out_shape(0)[1], in = c.out_shape(0)[2];
  const bool with_bias = c.op.outputs.size() > 1;
  using W = kernels::Wide<T>;
  auto& products = no_products<T>();
  int64_t next = 0;
  bool once = true;  // whether each expert has one product with rows
  for_each_run(c, b, c.in_i32(4), nullptr, [&](int64_t e, int64_t first, int64_t rows) {
    once = once && e == next++ && rows > 0;
    products.push_back(
        {out, in, rows, c.in(0) + first * out, c.in(1) + first * in, c.wide_out(0) + e * out * in});
  });
  const bool added = c.wide(2) != nullptr || !once || next != b.experts;
  if (added) start_from(c, c.wide_out(0), c.wide(2), b.experts * out * in);
  c.k.gemm_many(gemm_variant(c.op), true, false, static_cast<int64_t>(products.size()),
                products.data(), W{1}, out, in, added ? W{1} : W{0}, in, c.stream);
  if (!with_bias) return;
  start_from(c, c.wide_out(1), c.wide(3), b.experts * out);
  for_each_run(c, b, c.in_i32(4), nullptr, [&](int64_t e, int64_t first, int64_t rows) {
    W* db = c.wide_out(1) + e * out;
    c.k.bias_grad(db, c.in(0) + first * out, db, rows, out, c.stream);
  });
};

}  // namespace

const OpDef kExpertLinear = {
    .name = "expert_linear",
    .doc =
        "y[e] = x[e] w[e]^T [+ bias[e]] for local experts; attr rows = capacity or used; with "
        "gelu=1 also GELU(y)",
    .moe = MoeOp::kExpertProduct,
    .bound = Bound::kFlops,
    .inputs = {{"x"},
               {"w"},
               optional("bias", Role::kBias),
               optional("recv_counts", Role::kRecvCounts),
               optional("recv_begin", Role::kRecvBegin)},
    .outputs = {{"y"}, with("gelu", "z")},
    .infer = infer_expert_linear,
    .work = work_expert_linear,
    .gradient = gradient_expert_linear,
    .axes = axes_expert_linear,
    .begins = {{.input = 4, .of_input = 3}},
    .rows_end = ends_in<3>,
    .only_used_rows = only_used,
    .rounds = {1},
    .run = any_type(run_expert_linear),
    .host_inputs = counted<3, 4>};

const OpDef kExpertLinearDx = {
    .name = "expert_linear_dx",
    .doc = "dx[e] = dy[e] w[e] [+ acc]; with attr gelu=1 dx is multiplied by GELU'(sum)",
    .bound = Bound::kFlops,
    .inputs = {{"dy"},
               {"w"},
               optional("acc", Role::kAdded),
               optional("recv_counts", Role::kRecvCounts),
               with("gelu", "sum", Role::kSum)},
    .outputs = {{"dx"}},
    .infer = infer_dx_expert_linear,
    .work = work_dx_expert_linear,
    .gradient = no_gradient,
    .may_alias = {{0, 2}},
    .rounds = {1},
    .run = any_type(run_dx_expert_linear),
    .host_inputs = counted<3>};

const OpDef kExpertLinearDw = {
    .name = "expert_linear_dw",
    .doc = "dw[e] = dy[e]^T x[e] [+ acc]; with attr bias=1 also db[e] = column sums of dy[e]",
    .bound = Bound::kFlops,
    .inputs = {{"dy"},
               {"x"},
               optional("acc_w"),
               optional("acc_b"),
               optional("recv_counts", Role::kRecvCounts)},
    .outputs = {{"dw"}, with("bias", "db")},
    .infer = infer_dw_expert_linear,
    .work = work_dw_expert_linear,
    .gradient = no_gradient,
    .may_alias = {{0, 2}, {1, 3}},
    .run = any_type(run_dw_expert_linear),
    .host_inputs = counted<4>};

}  // namespace moe::ops
