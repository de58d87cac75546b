// Fused causal self-attention. The backward recomputes the probabilities.
#include "engine/ops/attention_shape.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr const char *kKernels = "kernels", *kLibrary = "cudnn", *kOwn = "own";

/// Whether a device uses this project's kernels also where a library has some for the shape.
bool own_kernels(const Op& op) {
  const std::string kernels = attr_string(op, kKernels, kLibrary);
  if (kernels == kLibrary || kernels == kOwn) return kernels == kOwn;
  throw user_error("op '{}': attribute '{}' is '{}', allowed: {}, {}", op.name, kKernels, kernels,
                   kLibrary, kOwn);
}

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  const kernels::AttentionShape s = attention_shape(g, op, 0);
  const DType dtype = arg(g, op, 0).dtype;
  return {{{s.batch, s.seq, s.heads * s.head_dim}, dtype},
          {{s.batch, s.heads, s.seq}, stats_dtype(dtype)}};
}

/// Work of `products` matrix products, each over the seq (seq + 1) / 2 pairs of positions on and
/// below the diagonal. The op's input number `qkv` is the tensor qkv.
Work causal_work(const Graph& g, const Op& op, size_t qkv, double products) {
  const kernels::AttentionShape s = attention_shape(g, op, qkv);
  const double pairs = 0.5 * static_cast<double>(s.seq) * static_cast<double>(s.seq + 1);
  return {.flops = products * 2 * pairs * static_cast<double>(s.batch * s.heads * s.head_dim),
          .bytes = io_bytes(g, op),
          .matrix = {.kind = MatrixWork::Kind::kAttention,
                     .batch = static_cast<double>(s.batch),
                     .seq = static_cast<double>(s.seq),
                     .heads = static_cast<double>(s.heads),
                     .kv_heads = static_cast<double>(s.kv_heads),
                     .head_dim = static_cast<double>(s.head_dim),
                     .backward = products > 2}};
}

Work work(const Graph& g, const Op& op, const WorkContext&) {
  return causal_work(g, op, 0, 2);
}

void gradient(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId qkv = op.inputs[0], ctx = op.outputs[0], lse = op.outputs[1];
  if (!c.needs(qkv)) return;
  const OpId dx = c.emit("attention_dx", "dx", {c.grad(ctx), ctx, qkv, lse}, op.attrs);
  c.add(qkv, c.graph().out(dx));
}

/// Can be cut along the batch only: a part of the positions would lack the keys before it, and the
/// last axis of qkv holds q, k and v of all heads, [3, heads, head size].
std::vector<AxisTuple> axes(const Graph&, const Op&) {
  return {{{0}, {0, 0}}};
}

template <class T>
Bytes work_bytes(kernels::AttentionShape s) {
  return kernels::table<T>().attention_work_bytes(s);
}

Bytes scratch(const Graph& g, const Op& op, size_t qkv, Bytes elem_bytes) {
  const kernels::AttentionShape s = attention_shape(g, op, qkv);
  return elem_bytes == 8 ? work_bytes<double>(s) : work_bytes<float>(s);
}

template <class T>
void run(const KernelCall<T>& c) {
  const kernels::AttentionShape s = attention_shape(c.graph, c.op, 0);
  c.k.attention(c.out(0), c.wide_out(1), in_qkv<T>(c.in(0), s), s, c.scratch, c.stream);
}

std::vector<TensorSpec> infer_dx(const Graph& g, const Op& op) {
  const kernels::AttentionShape s = attention_shape(g, op, 2);
  const Shape ctx = {s.batch, s.seq, s.heads * s.head_dim};
  expect_shape(g, op, 0, ctx);
  expect_shape(g, op, 1, ctx);
  expect_shape(g, op, 3, {s.batch, s.heads, s.seq});
  return {{shape(g, op, 2), arg(g, op, 2).dtype}};
}

/// Five products: the recomputed scores, dv, dprob, dq and dk.
Work work_dx(const Graph& g, const Op& op, const WorkContext&) {
  return causal_work(g, op, 2, 5);
}

template <class T>
void run_dx(const KernelCall<T>& c) {
  const kernels::AttentionShape s = attention_shape(c.graph, c.op, 2);
  c.k.attention_dx(out_qkv<T>(c.out(0), s), c.in(0), c.in(1), in_qkv<T>(c.in(2), s), c.wide(3), s,
                   c.scratch, c.stream);
}

}  // namespace

kernels::AttentionShape attention_shape(const Graph& g, const Op& op, size_t i) {
  expect_shape(g, op, i, {kAny, kAny, kAny});
  const Shape& qkv = shape(g, op, i);
  const int64_t heads = expect_attr(op, "heads", 1);
  if (qkv[2] % (3 * heads) != 0) {
    throw user_error(
        "op '{}' ({}): the length of the last axis of '{}' {} must be a multiple of 3 * heads = 3 "
        "* {}",
        op.name, g.def(op).name, arg(g, op, i).name, shape_text(qkv), heads);
  }
  return {qkv[0], qkv[1], heads, qkv[2] / (3 * heads), own_kernels(op)};
}

const OpDef kAttention = {
    .name = "attention",
    .doc = "fused causal attention with attr heads; also outputs the log-sum-exp of the scores",
    .inputs = {{"qkv", Role::kQkv}},
    .outputs = {{"ctx"}, {"lse"}},
    .infer = infer,
    .work = work,
    .gradient = gradient,
    .axes = axes,
    .scratch_bytes = [](const Graph& g, const Op& op, Bytes b) { return scratch(g, op, 0, b); },
    .run_f32 = run<float>,
    .run_f64 = run<double>,
    .run_bf16 = run<kernels::Bf16>};

const OpDef kAttentionDx = {
    .name = "attention_dx",
    .doc = "gradient of qkv through fused attention",
    .inputs = {{"dctx"}, {"ctx"}, {"qkv", Role::kQkv}, {"lse"}},
    .outputs = {{"dqkv"}},
    .infer = infer_dx,
    .work = work_dx,
    .gradient = no_gradient,
    .scratch_bytes = [](const Graph& g, const Op& op, Bytes b) { return scratch(g, op, 2, b); },
    .run_f32 = run_dx<float>,
    .run_f64 = run_dx<double>,
    .run_bf16 = run_dx<kernels::Bf16>};

}  // namespace moe::ops
