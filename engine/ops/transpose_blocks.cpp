// Changes the order of blocks of rows in memory, as is needed before the first or after the last
// step of a hierarchical all-to-all.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_transpose_blocks(const Graph& g, const Op& op) {
  const Tensor& x = arg(g, op, 0);
  const int64_t rows = expect_attr(op, "rows", 1), cols = expect_attr(op, "cols", 1);
  if (x.shape.empty() || x.shape[0] < 1 || x.shape[0] % (rows * cols) != 0) {
    throw user_error(
        "op '{}' (transpose_blocks): input 0 '{}' is {}, but its first axis must be a multiple of "
        "rows * cols = {} * {}",
        op.name, x.name, shape_text(x.shape), rows, cols);
  }
  return {{x.shape, x.dtype}};
}

/// Can be cut along any axis except the first, which holds the blocks; counts of rows, as row ends.
std::vector<AxisTuple> axes_transpose_blocks(const Graph& g, const Op& op) {
  std::vector<AxisTuple> tuples;
  if (arg(g, op, 0).dtype == DType::kI32) tuples.push_back({{kRowEnds}, {kRowEnds}});
  for (size_t axis = 1; axis < shape(g, op, 0).size(); ++axis) {
    tuples.push_back({{static_cast<int>(axis)}, {static_cast<int>(axis)}});
  }
  return tuples;
}

void gradient_transpose_blocks(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0])) return;
  const OpId dx = c.emit("transpose_blocks", "dx", {c.grad(op.outputs[0])},
                         {{"rows", op.attrs.at("cols")}, {"cols", op.attrs.at("rows")}});
  c.add(op.inputs[0], c.graph().out(dx));
}

constexpr auto run_transpose_blocks = []<class T>(const KernelCall<T>& c) {
  const int64_t rows = attr_int(c.op, "rows"), cols = attr_int(c.op, "cols");
  const bool index = arg(c.graph, c.op, 0).dtype == DType::kI32;
  const auto element = static_cast<int64_t>(index ? sizeof(int32_t) : sizeof(T));
  const int64_t block = num_elements(c.in_shape(0)) / (rows * cols) * element;
  const auto* from = static_cast<const std::byte*>(c.inputs[0]);
  auto* to = static_cast<std::byte*>(c.outputs[0]);
  for (int64_t r = 0; r < rows; ++r) {
    c.k.copy_2d(to + r * block, rows * block, from + r * cols * block, block, block, cols,
                c.stream);
  }
};

}  // namespace

const OpDef kTransposeBlocks = {
    .name = "transpose_blocks",
    .doc = "block (i, j) of x [rows, cols, ...] becomes block (j, i); attrs rows, cols",
    .basic = BasicOp::kTransposeBlocks,
    .inputs = {{"x", Role::kAny}},
    .outputs = {{"y", Role::kAny}},
    .infer = infer_transpose_blocks,
    .work = work_moves,
    .gradient = gradient_transpose_blocks,
    .axes = axes_transpose_blocks,
    .run = any_type(run_transpose_blocks)};

}  // namespace moe::ops
