// split_heads cuts the columns of every head in two, join_heads joins them: q and k of latent
// attention are parts without and with a position, k and v come from one product, and the part of k
// with a position is the same in all heads (attr shared).
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

bool shared(const Op& op) {
  const int64_t value = attr_int(op, "shared");
  if (value == 0 || value == 1) return value == 1;
  throw user_error("op '{}': attribute 'shared' = {}, allowed: 0 or 1", op.name, value);
}

Shape with_cols(Shape shape, int64_t cols) {
  shape.back() = cols;
  return shape;
}

/// Returns the columns of the heads of split_heads's x.
kernels::HeadColumns columns_of_whole(const Graph& g, const Op& op) {
  const int64_t cols = cols_of(expect_matrix(g, op, 0));
  const int64_t heads = expect_attr(op, "heads", 1), first = expect_attr(op, "first", 1);
  if (cols % heads != 0 || first >= cols / heads) {
    throw user_error(
        "op '{}' (split_heads): input 0 '{}' is {}, allowed: a last axis of 'heads' = {} times "
        "more than 'first' = {} columns",
        op.name, arg(g, op, 0).name, shape_text(shape(g, op, 0)), heads, first);
  }
  return {heads, first, cols / heads - first, shared(op)};
}

/// Returns the columns of the heads that join_heads's inputs have.
kernels::HeadColumns columns_of_parts(const Graph& g, const Op& op) {
  const Shape& first = expect_matrix(g, op, 0);
  const int64_t heads = expect_attr(op, "heads", 1);
  expect_shape(g, op, 1, with_cols(first, kAny));
  const int64_t second = cols_of(shape(g, op, 1)), in_second = shared(op) ? 1 : heads;
  for (const auto& [i, cols, of] :
       {std::tuple(0, cols_of(first), heads), std::tuple(1, second, in_second)}) {
    if (cols % of == 0) continue;
    throw user_error(
        "op '{}' (join_heads): input {} '{}' is {}, allowed: a last axis of 'heads' = {} times a "
        "head's columns",
        op.name, i, arg(g, op, static_cast<size_t>(i)).name,
        shape_text(shape(g, op, static_cast<size_t>(i))), heads);
  }
  return {heads, cols_of(first) / heads, second / in_second, shared(op)};
}

std::vector<TensorSpec> infer_split_heads(const Graph& g, const Op& op) {
  const kernels::HeadColumns columns = columns_of_whole(g, op);
  const Shape& x = shape(g, op, 0);
  const DType dtype = arg(g, op, 0).dtype;
  return {{with_cols(x, columns.row_of_first()), dtype},
          {with_cols(x, columns.row_of_second()), dtype}};
}

std::vector<TensorSpec> infer_join_heads(const Graph& g, const Op& op) {
  const Tensor& first = arg(g, op, 0);
  if (arg(g, op, 1).dtype != first.dtype) {
    throw user_error("op '{}' (join_heads): inputs '{}' and '{}' must have the same type", op.name,
                     first.name, arg(g, op, 1).name);
  }
  return {{with_cols(first.shape, columns_of_parts(g, op).row()), first.dtype}};
}

/// Only shared columns of split_heads are computed, not copied.
Work work_heads(const Graph& g, const Op& op, const WorkContext&) {
  const bool sums = op.outputs.size() == 2 && shared(op);
  return elementwise_work(g, op, sums ? static_cast<double>(num_elements(shape(g, op, 0))) : 0);
}

Attrs attrs_of(const Op& op) {
  Attrs attrs = {{"heads", attr_int(op, "heads")}};
  if (shared(op)) attrs["shared"] = int64_t{1};
  return attrs;
}

void gradient_split_heads(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId x = op.inputs[0];
  if (!c.needs(x)) return;
  for (const TensorId t : op.outputs) {
    if (c.grad(t).valid()) continue;
    throw user_error(
        "op '{}' (split_heads): the loss does not depend on '{}'; it must depend on both outputs",
        op.name, c.graph().tensor(t).name);
  }
  c.add(x, c.graph().out(c.emit(kJoinHeads, "dx", {c.grad(op.outputs[0]), c.grad(op.outputs[1])},
                                attrs_of(op))));
}

void gradient_join_heads(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0]) && !c.needs(op.inputs[1])) return;
  Attrs attrs = attrs_of(op);
  attrs["first"] = cols_of(shape(c.graph(), op, 0)) / attr_int(op, "heads");
  const OpId dx = c.emit(kSplitHeads, "dx", {c.grad(op.outputs[0])}, attrs);
  for (size_t i = 0; i < 2; ++i) {
    if (c.needs(op.inputs[i])) c.add(op.inputs[i], c.graph().out(dx, i));
  }
}

/// Can be cut along any axis but the last.
template <size_t kInputs, size_t kOutputs>
std::vector<AxisTuple> axes_heads(const Graph& g, const Op& op) {
  std::vector<AxisTuple> tuples;
  for (int a = 0; a + 1 < static_cast<int>(shape(g, op, 0).size()); ++a) {
    tuples.push_back({std::vector<int>(kInputs, a), std::vector<int>(kOutputs, a)});
  }
  return tuples;
}

constexpr auto run_split_heads = []<class T>(const KernelCall<T>& c) {
  c.k.split_heads(c.out(0), c.out(1), c.in(0), columns_of_whole(c.graph, c.op),
                  rows_of(c.in_shape(0)), c.stream);
};

constexpr auto run_join_heads = []<class T>(const KernelCall<T>& c) {
  c.k.join_heads(c.out(0), c.in(0), c.in(1), columns_of_parts(c.graph, c.op),
                 rows_of(c.in_shape(0)), c.stream);
};

}  // namespace

const OpDef kSplitHeads = {
    .name = "split_heads",
    .doc =
        "of every head of a row, the first attr first columns and the others; attr heads; attr "
        "shared=1: the others are summed over the heads",
    .bound = Bound::kBytes,
    .inputs = {{"x"}},
    .outputs = {{"first"}, {"second"}},
    .infer = infer_split_heads,
    .work = work_heads,
    .gradient = gradient_split_heads,
    .axes = axes_heads<1, 2>,
    .run = any_type(run_split_heads)};

const OpDef kJoinHeads = {
    .name = "join_heads",
    .doc =
        "the inverse of split_heads; attr heads; attr shared=1: the second columns are the same in "
        "every head",
    .bound = Bound::kBytes,
    .inputs = {{"first"}, {"second"}},
    .outputs = {{"x"}},
    .infer = infer_join_heads,
    .work = work_heads,
    .gradient = gradient_join_heads,
    .axes = axes_heads<2, 1>,
    .run = any_type(run_join_heads)};

}  // namespace moe::ops
