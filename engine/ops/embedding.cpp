// Sum of token and position embedding. The backward adds dx to the rows of both tables.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_embedding(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny, kAny});
  expect_shape(g, op, 1, {kAny, kAny});
  const Shape& ids = shape(g, op, 0);
  const int64_t hidden = shape(g, op, 1)[1];
  expect_shape(g, op, 2, {ids[1], hidden});
  return {{{ids[0], ids[1], hidden}, stored_dtype(op, arg(g, op, 1).dtype)}};
}

/// Only the rows of wte for this batch's tokens are read.
Work work_embedding(const Graph& g, const Op& op, const WorkContext&) {
  const Bytes out = g.bytes(op.outputs[0]);
  return {.flops = static_cast<double>(num_elements(g.tensor(op.outputs[0]).shape)),
          .bytes = static_cast<double>(2 * out + g.bytes(op.inputs[0]) +
                                       (has(op, 2) ? g.bytes(op.inputs[2]) : 0))};
}

void gradient_embedding(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId wte = op.inputs[1], wpe = input_or_none(op, 2);
  if (!c.needs(wte) && !c.needs(wpe)) return;
  Attrs attrs = {{"vocab", shape(c.graph(), op, 1)[0]}};
  std::vector<TensorId> inputs = {c.grad(op.outputs[0]), op.inputs[0], c.grad(wte)};
  if (wpe.valid()) {
    inputs.push_back(c.grad(wpe));
  } else {
    attrs["positions"] = int64_t{0};
  }
  const OpId dw = c.emit(kEmbeddingDw, "dw", inputs, attrs, true);
  c.set(wte, c.graph().out(dw, 0));
  if (wpe.valid()) c.set(wpe, c.graph().out(dw, 1));
}

/// Can be cut along the batch, or along the positions (then the rows of wpe are cut as well).
std::vector<AxisTuple> axes_embedding(const Graph&, const Op&) {
  return {{{0, kWhole, kWhole}, {0}}, {{1, kWhole, 0}, {1}}};
}

constexpr auto run_embedding = []<class T>(const KernelCall<T>& c) {
  const Shape& out = c.out_shape(0);
  c.k.embedding(c.out(0), c.in_i32(0), c.wide(1), c.wide(2), out[0] * out[1], out[1], out[2],
                c.stream);
};

/// Attr positions: 0 where the embedding has no wpe.
bool has_positions(const Op& op) {
  return attr_int(op, "positions", 1) != 0;
}

std::vector<TensorSpec> infer_dw_embedding(const Graph& g, const Op& op) {
  expect_index(g, op, 1, {kAny, kAny});
  const Shape& ids = shape(g, op, 1);
  expect_shape(g, op, 0, {ids[0], ids[1], kAny});
  const int64_t hidden = shape(g, op, 0)[2], vocab = expect_attr(op, "vocab", 1);
  expect_shape(g, op, 2, {vocab, hidden});
  const DType dtype = gradient_dtype(op, arg(g, op, 0).dtype);
  std::vector<TensorSpec> tables = {{{vocab, hidden}, dtype}};
  if (has_positions(op)) {
    expect_shape(g, op, 3, {ids[1], hidden});
    tables.push_back({{ids[1], hidden}, dtype});
  } else if (has(op, 3)) {
    throw user_error(
        "op '{}' (embedding_dw): input 3 is not allowed with attribute 'positions' = 0", op.name);
  }
  return tables;
}

constexpr auto run_dw_embedding = []<class T>(const KernelCall<T>& c) {
  const Shape& dx = c.in_shape(0);
  const int64_t tokens = dx[0] * dx[1];
  c.k.embedding_dwte(c.wide_out(0), c.in_i32(1), c.in(0), c.wide(2), tokens, c.out_shape(0)[0],
                     dx[2], c.stream);
  if (!has_positions(c.op)) return;
  c.k.embedding_dwpe(c.wide_out(1), c.in(0), c.wide(3), tokens, dx[1], dx[2], c.stream);
};

}  // namespace

const OpDef kEmbedding = {.name = "embedding",
                          .doc = "x[b,s] = wte[ids[b,s]] [+ wpe[s]]",
                          .bound = Bound::kBytes,
                          .inputs = {{"ids", Role::kIds}, {"wte", Role::kTable}, optional("wpe")},
                          .outputs = {{"x"}},
                          .infer = infer_embedding,
                          .work = work_embedding,
                          .gradient = gradient_embedding,
                          .axes = axes_embedding,
                          .run = any_type(run_embedding)};

const OpDef kEmbeddingDw = {
    .name = "embedding_dw",
    .doc =
        "adds each row of dx to its rows of the gradients of both tables; attr vocab; attr "
        "positions=0: without that of wpe",
    .inputs = {{"dx"}, {"ids", Role::kIds}, optional("acc_wte"), optional("acc_wpe")},
    .outputs = {{"dwte", Role::kTable}, optional("dwpe")},
    .infer = infer_dw_embedding,
    .work = work_each<2>,
    .gradient = no_gradient,
    .may_alias = {{0, 2}, {1, 3}},
    .run = any_type(run_dw_embedding)};

}  // namespace moe::ops
