// The gated activation of SwiGLU and its relatives: y = silu(gate) * up, where gate is the first
// half of x's last axis and up the second half; with attr rows = "used" only of the rows in use.
// With weights, rows of experts are multiplied by the routing weights, as Megatron-LM does
// (core/fusions/fused_bias_swiglu.py, weighted_bias_swiglu): the gradient of a row's weight is then
// known here, and rows that come back from the experts need not be kept for it.
//
// x is one tensor, since one product of 2n columns is faster than two of n columns, reads its input
// once, and leaves an expert with two matrices to store, move and update. Checkpoints with separate
// matrices (w1 and w3, gate_proj and up_proj) are joined when they are read. Halves and not
// interleaved columns (gate_up_proj of gpt-oss), because both operands of a vector are then
// contiguous; which column is which is only a matter of the order of the rows of the weights.
#include "engine/ops/defs.h"
#include "engine/ops/each_row.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

/// Flops per element of y, with 5 and 6 for the exponential and the division.
constexpr double kFlops = 16, kDxFlops = 24;
/// The place of the weights, in the forward and in the gradient's op, whose counts are before it.
constexpr size_t kWeights = 3, kDxWeights = 3;

/// Returns attrs limit (absent: none), alpha (default 1) and offset (default 0). Throws UserError
/// unless limit and alpha are above 0.
kernels::GatedForm form_of(const Op& op) {
  const kernels::GatedForm usual;
  const kernels::GatedForm form = {attr_double(op, "limit", usual.limit),
                                   attr_double(op, "alpha", usual.alpha),
                                   attr_double(op, "offset", usual.offset)};
  for (const auto& [key, value] :
       {std::pair("limit", form.limit), std::pair("alpha", form.alpha)}) {
    if (value > 0) continue;
    throw user_error("op '{}': attribute '{}' is {}, allowed: a number above 0", op.name, key,
                     value);
  }
  return form;
}

/// Returns the shape of y for input x. Throws UserError unless the last axis of x has two halves.
Shape half_of(const Graph& g, const Op& op, size_t x) {
  Shape half = expect_matrix(g, op, x);
  if (half.back() % 2 != 0) {
    throw user_error("op '{}' ({}): input {} '{}' is {}, allowed: a last axis of even length",
                     op.name, g.def(op).name, x, arg(g, op, x).name, shape_text(half));
  }
  half.back() /= 2;
  return half;
}

/// Returns the shape of the rows' weights or of their gradients, for rows of this shape.
Shape one_per_row(Shape rows) {
  rows.back() = 1;
  return rows;
}

std::vector<TensorSpec> infer_silu_mul(const Graph& g, const Op& op) {
  const Shape y = half_of(g, op, 0);
  form_of(op);
  expect_row_counts(g, op, 0);
  expect_shape(g, op, kWeights, one_per_row(y));
  return {rows_like(arg(g, op, 0), y)};
}

/// The number of elements of y, for input x.
double elements_silu_mul(const Graph& g, const Op& op, size_t x) {
  return 0.5 * static_cast<double>(num_elements(shape(g, op, x)));
}

Work work_silu_mul(const Graph& g, const Op& op, const WorkContext& context) {
  return each_row_work(g, op, context, kFlops * elements_silu_mul(g, op, 0));
}

Work work_dx_silu_mul(const Graph& g, const Op& op, const WorkContext& context) {
  return each_row_work(g, op, context, kDxFlops * elements_silu_mul(g, op, 1));
}

/// Can be cut along any axis but the last, which has the halves; with rows = "used", along the rows
/// in use. With weights, no pass cuts it: their exchange is not cut.
std::vector<AxisTuple> axes_silu_mul(const Graph& g, const Op& op) {
  if (has(op, kWeights)) return {};
  if (only_used(op)) return used_row_cuts(g, op, {0});
  if (op.rows.is_cut()) return {};
  const int last = static_cast<int>(shape(g, op, 0).size()) - 1;
  std::vector<AxisTuple> tuples;
  for (int a = 0; a < last; ++a) tuples.push_back({{a, kWhole, kWhole}, {a}});
  return tuples;
}

void gradient_silu_mul(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId x = op.inputs[0], weight = input_or_none(op, kWeights);
  if (!c.needs(x)) return;
  std::vector<TensorId> inputs = {c.grad(op.outputs[0]), x};
  Attrs attrs = same_rows(c.graph(), op, inputs);
  if (weight.valid()) {
    inputs.resize(kDxWeights);
    inputs.push_back(weight);
    attrs["weighted"] = int64_t{1};
  }
  for (const char* key : {"limit", "alpha", "offset"}) {
    if (const auto given = op.attrs.find(key); given != op.attrs.end()) attrs.insert(*given);
  }
  const OpId dx = c.emit(kSiluMulDx, "dx", inputs, attrs);
  c.add(x, c.graph().out(dx));
  if (c.needs(weight)) c.add(weight, c.graph().out(dx, 1));
}

constexpr auto run_silu_mul = []<class T>(const KernelCall<T>& c) {
  const int64_t cols = cols_of(c.out_shape(0));
  for_each_rows(c, 0, 1, [&](int64_t first, int64_t rows, int64_t) {
    const auto* const weight = c.wide(kWeights);
    c.k.silu_mul(c.out(0) + first * cols, c.in(0) + first * 2 * cols,
                 weight == nullptr ? nullptr : weight + first, form_of(c.op), rows, cols, c.stream);
  });
};

std::vector<TensorSpec> infer_dx_silu_mul(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, half_of(g, op, 1));
  form_of(op);
  expect_row_counts(g, op, 1);
  const Shape of_rows = one_per_row(shape(g, op, 1));
  expect_shape(g, op, kDxWeights, of_rows);
  std::vector<TensorSpec> specs = {rows_like(arg(g, op, 1), shape(g, op, 1))};
  if (has(op, kDxWeights)) specs.push_back(rows_like(arg(g, op, kDxWeights), of_rows));
  return specs;
}

constexpr auto run_dx_silu_mul = []<class T>(const KernelCall<T>& c) {
  const int64_t cols = cols_of(c.in_shape(0));
  const auto* const weight = c.wide(kDxWeights);
  for_each_rows(c, 1, 1, [&](int64_t first, int64_t rows, int64_t) {
    c.k.silu_mul_dx(c.out(0) + first * 2 * cols,
                    weight == nullptr ? nullptr : c.wide_out(1) + first, c.in(0) + first * cols,
                    c.in(1) + first * 2 * cols, weight == nullptr ? nullptr : weight + first,
                    form_of(c.op), rows, cols, c.stream);
  });
  if (weight == nullptr || !counts_rows(c.op)) return;
  zero_unused(c, c.wide_out(1), blocks_of(c.graph, c.op, 1), c.in_i32(2), 1);
};

}  // namespace

const OpDef kSiluMul = {
    .name = "silu_mul",
    .doc =
        "y = silu(gate) * up, gate and up being the halves of x's last axis; gate <= attr limit, "
        "|up| <= limit, silu(g) = g sigmoid(attr alpha * g), attr offset is added to up; [times "
        "the row's weight]",
    .bound = Bound::kBytes,
    .inputs = {{"x", Role::kSum},
               optional("recv_counts", Role::kRecvCounts),
               optional("recv_begin", Role::kRecvBegin),
               optional("weight")},
    .outputs = {{"y"}},
    .infer = infer_silu_mul,
    .work = work_silu_mul,
    .gradient = gradient_silu_mul,
    .axes = axes_silu_mul,
    .begins = {{.input = 2, .of_input = 1}},
    .rows_end = end_of_rows,
    .only_used_rows = only_used,
    .run = any_type(run_silu_mul),
    .host_inputs = counted<1, 2>};

const OpDef kSiluMulDx = {
    .name = "silu_mul_dx",
    .doc = "dx = gradients of both halves of x; with attr weighted=1 also that of the weights",
    .bound = Bound::kBytes,
    .inputs = {{"dy"},
               {"x", Role::kSum},
               optional("recv_counts", Role::kRecvCounts),
               with("weighted", "weight")},
    .outputs = {{"dx"}, with("weighted", "dweight")},
    .infer = infer_dx_silu_mul,
    .work = work_dx_silu_mul,
    .gradient = no_gradient,
    .run = any_type(run_dx_silu_mul),
    .host_inputs = counted<2>};

}  // namespace moe::ops
