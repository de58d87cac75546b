// Rotary embedding: turns pairs of columns of each head by an angle that grows with the position,
// and the angles, which all layers share.
//
// The angles come from an op that runs once per step. Its frequencies are an attribute and not the
// settings that they follow from, so that the op and its kernels know no scaling (linear, YaRN,
// Llama 3, ..): rope_frequencies.h computes them once, when a model is built. Angles, cosines and
// sines are float32 numbers whatever the model's type, as in transformers.
#include "engine/ops/defs.h"
#include "engine/ops/rope_frequencies.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_angles(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny, kAny});
  const auto pairs = static_cast<int64_t>(parse_frequencies(op).size());
  return {{{shape(g, op, 0)[1], 2 * pairs}, DType::kF32}};
}

/// The ids are not read: only their shape counts.
Work work_angles(const Graph& g, const Op& op, const WorkContext&) {
  // About 20 flops for a cosine or a sine, with the reduction of its argument.
  const double n = static_cast<double>(num_elements(g.tensor(op.outputs[0]).shape));
  return {.flops = 20 * n, .bytes = static_cast<double>(g.bytes(op.outputs[0]))};
}

constexpr auto run_angles = []<class T>(const KernelCall<T>& c) {
  const std::vector<float> all = parse_frequencies(c.op);
  kernels::RopeFrequencies f = {.pairs = static_cast<int64_t>(all.size()),
                                .scale = static_cast<float>(attr_double(c.op, "scale", 1))};
  std::copy(all.begin(), all.end(), f.at);
  c.k.rope_angles(c.wide_out(0), f, c.out_shape(0)[0], c.stream);
};

/// Returns the sizes of a call. Throws UserError unless attributes and shapes fit together.
kernels::RopeShape shape_of(const Graph& g, const Op& op) {
  const Shape& x = expect_matrix(g, op, 0);
  const int64_t seq = x[x.size() - 2], head_dim = expect_attr(op, "head_dim", 1);
  expect_shape(g, op, 1, {seq, kAny});
  const int64_t rotary = shape(g, op, 1)[1], first = attr_int(op, "first", 0);
  if (cols_of(x) % head_dim != 0) {
    throw user_error(
        "op '{}': attribute 'head_dim' = {}, allowed: a divisor of the last axis of '{}' {}",
        op.name, head_dim, arg(g, op, 0).name, shape_text(x));
  }
  if (rotary % 2 != 0 || first < 0 || first + rotary > head_dim) {
    throw user_error(
        "op '{}': attribute 'first' = {} with {} columns of angles '{}', allowed: an even number "
        "of columns from 'first' to at most head_dim = {}",
        op.name, first, rotary, arg(g, op, 1).name, head_dim);
  }
  const std::string form = attr_string(op, "form", "halves");
  if (form != "halves" && form != "interleaved") {
    throw user_error("op '{}': attribute 'form' is '{}', allowed: halves, interleaved", op.name,
                     form);
  }
  const int64_t inverse = attr_int(op, "inverse");
  if (inverse != 0 && inverse != 1) {
    throw user_error("op '{}': attribute 'inverse' = {}, allowed: 0 or 1", op.name, inverse);
  }
  return {.tokens = rows_of(x),
          .seq = seq,
          .heads = cols_of(x) / head_dim,
          .head_dim = head_dim,
          .first = first,
          .pairs = rotary / 2,
          .interleaved = form == "interleaved",
          .inverse = inverse == 1};
}

std::vector<TensorSpec> infer_rope(const Graph& g, const Op& op) {
  shape_of(g, op);
  return {{shape(g, op, 0), arg(g, op, 0).dtype}};
}

Work work_rope(const Graph& g, const Op& op, const WorkContext&) {
  const kernels::RopeShape s = shape_of(g, op);
  return elementwise_work(g, op, 6.0 * static_cast<double>(s.tokens * s.heads * s.pairs));
}

/// The gradient is turned back by the same angles; the angles themselves have none.
void gradient_rope(GradContext& c, OpId) {
  const Op op = c.op();
  if (!c.needs(op.inputs[0])) return;
  Attrs attrs = op.attrs;
  attrs["inverse"] = 1 - attr_int(op, "inverse");
  const OpId dx = c.emit(kRope, "dx", {c.grad(op.outputs[0]), op.inputs[1]}, attrs);
  c.add(op.inputs[0], c.graph().out(dx));
}

/// Can be cut along every axis but the last, along positions together with the angles.
std::vector<AxisTuple> axes_rope(const Graph& g, const Op& op) {
  const int seq = static_cast<int>(shape(g, op, 0).size()) - 2;
  std::vector<AxisTuple> tuples;
  for (int a = 0; a < seq; ++a) tuples.push_back({{a, kWhole}, {a}});
  tuples.push_back({{seq, 0}, {seq}});
  return tuples;
}

constexpr auto run_rope = []<class T>(const KernelCall<T>& c) {
  c.k.rope(c.out(0), c.in(0), c.wide(1), shape_of(c.graph, c.op), c.stream);
};

}  // namespace

const OpDef kRopeAngles = {
    .name = "rope_angles",
    .doc =
        "cosines and sines of position * frequency for each position of ids[B,S]; attrs "
        "frequencies=\"1,0.1\", scale (of both)",
    .inputs = {{"ids", Role::kIds}},
    .outputs = {{"angles"}},
    .infer = infer_angles,
    .work = work_angles,
    .gradient = no_gradient,
    .run = wide_types(run_angles)};

const OpDef kRope = {
    .name = "rope",
    .doc =
        "turns pairs of columns of every head of attr head_dim columns by the angles of their "
        "position; attrs first (column), form = halves or interleaved, inverse=1: back",
    .bound = Bound::kBytes,
    .inputs = {{"x"}, {"angles"}},
    .outputs = {{"y"}},
    .infer = infer_rope,
    .work = work_rope,
    .gradient = gradient_rope,
    .axes = axes_rope,
    .may_alias = {{0, 0}},
    .run = any_type(run_rope)};

}  // namespace moe::ops
