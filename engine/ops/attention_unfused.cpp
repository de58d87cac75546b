// Causal attention in three ops that keep [B, heads, S, S] in memory, as compilers without a fused
// kernel run it. The gradient of qkv is one tensor: attn_context_dx computes its v columns,
// attn_score_dx its q and k columns.
#include "engine/ops/attention_shape.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

Shape square(const kernels::AttentionShape& s) {
  return {s.batch, s.heads, s.seq, s.seq};
}
Shape context(const kernels::AttentionShape& s) {
  return {s.batch, s.seq, s.heads * s.head_dim};
}

/// Work of `products` matrix products over all pairs of positions, as plain batched GEMMs compute.
Work square_work(const Graph& g, const Op& op, size_t qkv, double products) {
  const kernels::AttentionShape s = attention_shape(g, op, qkv);
  return {.flops = products * 2 * static_cast<double>(num_elements(square(s))) *
                   static_cast<double>(s.head_dim),
          .bytes = io_bytes(g, op),
          .matrix = gemm_of(products * static_cast<double>(s.batch * s.heads * s.seq),
                            static_cast<double>(s.seq), static_cast<double>(s.head_dim))};
}

/// The softmax ops have no qkv: sizes are those of the scores, the head size is attr head_dim.
kernels::AttentionShape softmax_shape(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, {kAny, kAny, kAny, kAny});
  const Shape& score = shape(g, op, 0);
  expect_shape(g, op, 0, {score[0], score[1], score[2], score[2]});
  return {score[0], score[2], score[1], expect_attr(op, "head_dim", 1)};
}

std::vector<TensorSpec> infer_score(const Graph& g, const Op& op) {
  return {{square(attention_shape(g, op, 0)), arg(g, op, 0).dtype}};
}

void gradient_score(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId qkv = op.inputs[0], dscore = c.grad(op.outputs[0]);
  if (!c.needs(qkv)) return;
  if (!c.grad(qkv).valid()) {
    throw user_error(
        "op '{}' (attn_score): no op attn_context reads the same qkv; the gradient of attn_score "
        "needs one",
        op.name);
  }
  const OpId dx = c.emit("attn_score_dx", "dx", {dscore, qkv, c.grad(qkv)}, op.attrs);
  c.set(qkv, c.graph().out(dx));
}

/// Can be cut along the batch only: the last axis of qkv holds q, k and v of all heads.
std::vector<AxisTuple> axes_score(const Graph&, const Op&) {
  return {{{0}, {0}}};
}

constexpr auto run_score = []<class T>(const KernelCall<T>& c) {
  c.k.attn_score(c.out(0), c.in(0), attention_shape(c.graph, c.op, 0), c.stream);
};

std::vector<TensorSpec> infer_softmax(const Graph& g, const Op& op) {
  return {{square(softmax_shape(g, op)), arg(g, op, 0).dtype}};
}

void gradient_softmax(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0])) return;
  const TensorId prob = op.outputs[0];
  const OpId dx = c.emit("attn_softmax_dx", "dx", {c.grad(prob), prob}, op.attrs);
  c.add(op.inputs[0], c.graph().out(dx));
}

/// Can be cut along the batch or the heads. A part of the rows would need the number of its first
/// row for the causal mask.
std::vector<AxisTuple> axes_softmax(const Graph&, const Op&) {
  return {{{0}, {0}}, {{1}, {1}}};
}

constexpr auto run_softmax = []<class T>(const KernelCall<T>& c) {
  c.k.attn_softmax(c.out(0), c.in(0), softmax_shape(c.graph, c.op), c.stream);
};

std::vector<TensorSpec> infer_context(const Graph& g, const Op& op) {
  const kernels::AttentionShape s = attention_shape(g, op, 1);
  expect_shape(g, op, 0, square(s));
  return {{context(s), arg(g, op, 1).dtype}};
}

void gradient_context(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId prob = op.inputs[0], qkv = op.inputs[1];
  if (!c.needs(qkv)) return;
  const OpId dx = c.emit("attn_context_dx", "dx", {c.grad(op.outputs[0]), prob, qkv}, op.attrs);
  c.add(prob, c.graph().out(dx, 0));
  c.add(qkv, c.graph().out(dx, 1));
}

std::vector<AxisTuple> axes_context(const Graph&, const Op&) {
  return {{{0, 0}, {0}}};
}

constexpr auto run_context = []<class T>(const KernelCall<T>& c) {
  c.k.attn_context(c.out(0), c.in(0), c.in(1), attention_shape(c.graph, c.op, 1), c.stream);
};

std::vector<TensorSpec> infer_context_dx(const Graph& g, const Op& op) {
  const kernels::AttentionShape s = attention_shape(g, op, 2);
  expect_shape(g, op, 0, context(s));
  expect_shape(g, op, 1, square(s));
  const DType dtype = arg(g, op, 2).dtype;
  return {{square(s), dtype}, {shape(g, op, 2), dtype}};
}

constexpr auto run_context_dx = []<class T>(const KernelCall<T>& c) {
  start_from(c, c.out(1), nullptr, num_elements(c.out_shape(1)));
  c.k.attn_context_dx(c.out(0), c.out(1), c.in(0), c.in(1), c.in(2),
                      attention_shape(c.graph, c.op, 2), c.stream);
};

std::vector<TensorSpec> infer_softmax_dx(const Graph& g, const Op& op) {
  const kernels::AttentionShape s = softmax_shape(g, op);
  expect_shape(g, op, 1, square(s));
  return {{square(s), arg(g, op, 0).dtype}};
}

constexpr auto run_softmax_dx = []<class T>(const KernelCall<T>& c) {
  c.k.attn_softmax_dx(c.out(0), c.in(0), c.in(1), softmax_shape(c.graph, c.op), c.stream);
};

std::vector<TensorSpec> infer_score_dx(const Graph& g, const Op& op) {
  const kernels::AttentionShape s = attention_shape(g, op, 1);
  expect_shape(g, op, 0, square(s));
  expect_shape(g, op, 2, shape(g, op, 1));
  return {{shape(g, op, 1), arg(g, op, 1).dtype}};
}

constexpr auto run_score_dx = []<class T>(const KernelCall<T>& c) {
  copy(c, c.out(0), c.in(2), num_elements(c.out_shape(0)));
  c.k.attn_score_dx(c.out(0), c.in(0), c.in(1), attention_shape(c.graph, c.op, 1), c.stream);
};

template <size_t qkv, int products>
Work work_products(const Graph& g, const Op& op, const WorkContext&) {
  return square_work(g, op, qkv, products);
}

}  // namespace

const OpDef kAttnScore = {.name = "attn_score",
                          .doc = "score = q k^T for each head, not scaled; attr heads",
                          .inputs = {{"qkv"}},
                          .outputs = {{"score"}},
                          .infer = infer_score,
                          .work = work_products<0, 1>,
                          .gradient = gradient_score,
                          .axes = axes_score,
                          .run = any_type(run_score)};

const OpDef kAttnSoftmax = {.name = "attn_softmax",
                            .doc = "causal softmax of score / sqrt(attr head_dim)",
                            .inputs = {{"score"}},
                            .outputs = {{"prob"}},
                            .infer = infer_softmax,
                            .work = work_each<5>,
                            .gradient = gradient_softmax,
                            .axes = axes_softmax,
                            .run = any_type(run_softmax)};

const OpDef kAttnContext = {.name = "attn_context",
                            .doc = "context = prob v",
                            .inputs = {{"prob"}, {"qkv"}},
                            .outputs = {{"ctx"}},
                            .infer = infer_context,
                            .work = work_products<1, 1>,
                            .gradient = gradient_context,
                            .axes = axes_context,
                            .run = any_type(run_context)};

const OpDef kAttnContextDx = {.name = "attn_context_dx",
                              .doc = "dprob, and dqkv with its v columns computed and the others 0",
                              .inputs = {{"dctx"}, {"prob"}, {"qkv"}},
                              .outputs = {{"dprob"}, {"dqkv"}},
                              .infer = infer_context_dx,
                              .work = work_products<2, 2>,
                              .gradient = no_gradient,
                              .partly_written = {1},
                              .run = any_type(run_context_dx)};

const OpDef kAttnSoftmaxDx = {.name = "attn_softmax_dx",
                              .doc = "gradient of the unscaled scores",
                              .inputs = {{"dprob"}, {"prob"}},
                              .outputs = {{"dscore"}},
                              .infer = infer_softmax_dx,
                              .work = work_each<5>,
                              .gradient = no_gradient,
                              .run = any_type(run_softmax_dx)};

const OpDef kAttnScoreDx = {
    .name = "attn_score_dx",
    .doc = "dqkv with its q and k columns computed and the v columns copied from the input dqkv",
    .inputs = {{"dscore"}, {"qkv"}, {"dqkv"}},
    .outputs = {{"dqkv_sum"}},
    .infer = infer_score_dx,
    .work = work_products<1, 2>,
    .gradient = no_gradient,
    .may_alias = {{0, 2}},
    .run = any_type(run_score_dx)};

}  // namespace moe::ops
