// split_rows and concat_rows begin and end a chain of ops that is cut into parts along the rows in
// use (row_cut.h). All parts of a tensor have its shape and are in its storage, and each op reads
// and writes only the rows of its part. So both ops are views, which take no time.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr int kMaxPartsRowParts = 1 << 16;

/// Throws UserError unless `counts`, the number of rows in use per block, has the shape of the
/// first axes of the rows, but not of all.
void expect_blocks_row_parts(const Graph& g, const Op& op, const Tensor& rows) {
  const Shape& blocks = shape(g, op, 0);
  const bool inside = !blocks.empty() && blocks.size() < rows.shape.size() &&
                      std::equal(blocks.begin(), blocks.end(), rows.shape.begin());
  if (inside && arg(g, op, 0).dtype == DType::kI32) return;
  throw user_error("op '{}' ({}): counts '{}' are {} {}, expected i32 with the first axes of {}",
                   op.name, g.def(op).name, arg(g, op, 0).name, name_of(arg(g, op, 0).dtype),
                   shape_text(blocks), shape_text(rows.shape));
}

std::vector<TensorSpec> infer_split_row_parts(const Graph& g, const Op& op) {
  const Tensor& x = arg(g, op, 1);
  expect_blocks_row_parts(g, op, x);
  return std::vector<TensorSpec>(static_cast<size_t>(expect_attr(op, "parts", 1)),
                                 rows_like(x, x.shape));
}

std::vector<TensorSpec> infer_concat_row_parts(const Graph& g, const Op& op) {
  const Tensor& first = arg(g, op, 1);
  expect_blocks_row_parts(g, op, first);
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    if (has(op, i) && shape(g, op, i) == first.shape && arg(g, op, i).dtype == first.dtype)
      continue;
    throw user_error("op '{}' (concat_rows): all parts must be given and be {} {} like part '{}'",
                     op.name, name_of(first.dtype), shape_text(first.shape), first.name);
  }
  return {rows_like(first, first.shape)};
}

Work no_work(const Graph&, const Op&, const WorkContext&) {
  return {};
}

std::vector<TensorId> parts_of(const Op& op) {
  return {op.inputs.begin() + 1, op.inputs.end()};
}

std::vector<Piece> pieces_split_row_parts(const Graph&, const Op& op) {
  std::vector<Piece> pieces;
  for (const TensorId t : op.outputs) pieces.push_back({t, op.inputs[1], 0, op.inputs[0], true});
  return pieces;
}

std::vector<Piece> pieces_concat_row_parts(const Graph&, const Op& op) {
  std::vector<Piece> pieces;
  for (const TensorId t : parts_of(op)) pieces.push_back({t, op.outputs[0], 0, op.inputs[0], true});
  return pieces;
}

void gradient_split_row_parts(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[1])) return;
  std::vector<TensorId> inputs{op.inputs[0]};
  for (const TensorId t : op.outputs) inputs.push_back(c.grad(t));
  c.add(op.inputs[1], c.graph().out(c.emit("concat_rows", "dx", inputs)));
}

void gradient_concat_row_parts(GradContext& c, OpId) {
  const Op op = c.op();
  const std::vector<TensorId> parts = parts_of(op);
  const OpId dx = c.emit("split_rows", "dx", {op.inputs[0], c.grad(op.outputs[0])},
                         {{"parts", static_cast<int64_t>(parts.size())}});
  for (size_t i = 0; i < parts.size(); ++i) {
    if (c.needs(parts[i])) c.add(parts[i], c.graph().out(dx, i));
  }
}

/// Along the batch: the rows of a part of the batch, also of rows that are whole when they arrive.
std::vector<AxisTuple> axes_split(const Graph&, const Op& op) {
  const std::vector<int> rows(op.outputs.size(), kRows);
  return {{{kRowEnds, kRows}, rows}, {{kRowEnds, kWhole}, rows}};
}

std::vector<AxisTuple> axes_concat(const Graph&, const Op& op) {
  AxisTuple tuple{std::vector<int>(op.inputs.size(), kRows), {kRows}};
  tuple.inputs[0] = kRowEnds;
  return {tuple};
}

constexpr auto run_row_parts = []<class T>(const KernelCall<T>&) {};

bool is_a_view(const Op&) {
  return true;
}

}  // namespace

const OpDef kSplitRows = {.name = "split_rows",
                          .doc =
                              "begins a cut along the rows in use: attr parts tensors in the "
                              "storage of x, each of which an op with attr cut reads its rows of",
                          .inputs = {{"counts", Role::kAny}, {"x"}},
                          .outputs = {several("parts", kMaxPartsRowParts)},
                          .infer = infer_split_row_parts,
                          .work = no_work,
                          .gradient = gradient_split_row_parts,
                          .axes = axes_split,
                          .rows_end = ends_in<0>,
                          .pieces = pieces_split_row_parts,
                          .view = is_a_view,
                          .only_used_rows = on_any,
                          .run = any_type(run_row_parts)};

const OpDef kConcatRows = {.name = "concat_rows",
                           .doc =
                               "ends a cut along the rows in use: the tensor that all parts are in "
                               "the storage of",
                           .inputs = {{"counts", Role::kAny}, several("parts", kMaxPartsRowParts)},
                           .outputs = {{"x"}},
                           .infer = infer_concat_row_parts,
                           .work = no_work,
                           .gradient = gradient_concat_row_parts,
                           .axes = axes_concat,
                           .rows_end = ends_in<0>,
                           .pieces = pieces_concat_row_parts,
                           .view = is_a_view,
                           .only_used_rows = on_any,
                           .run = any_type(run_row_parts)};

}  // namespace moe::ops
