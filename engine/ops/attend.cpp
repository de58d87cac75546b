// Fused causal attention. q, k and v are one tensor, or tensors of their own: then with fewer heads
// of k and v than of q (grouped queries) and heads of v of another width, if wanted. The backward
// recomputes the probabilities. With attr context = n, the queries are those of a rank's two parts
// of 2 n of each sequence (cp), and keys and values of whole sequences.
#include <algorithm>
#include <cmath>

#include "engine/ops/attention_shape.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr const char *kKernels = "kernels", *kLibrary = "cudnn", *kOwn = "own";
constexpr size_t kQueryOfDx = 3;  // the input q of attend_dx

/// Whether a device uses this project's kernels also where a library has some for the shape.
bool own_kernels(const Op& op) {
  const std::string kernels = attr_string(op, kKernels, kLibrary);
  if (kernels == kLibrary || kernels == kOwn) return kernels == kOwn;
  throw user_error("op '{}': attribute '{}' is '{}', allowed: {}, {}", op.name, kKernels, kernels,
                   kLibrary, kOwn);
}

UserError refused(const Op& op, const char* attr, const std::string& value,
                  const std::string& allowed) {
  return user_error("op '{}': attribute '{}' = {}, allowed: {}", op.name, attr, value, allowed);
}

/// Returns the width of the heads in input i. Throws UserError unless there are `heads` of them.
int64_t width_of(const Graph& g, const Op& op, size_t i, const char* attr, int64_t heads) {
  const int64_t cols = cols_of(shape(g, op, i));
  if (cols % heads == 0) return cols / heads;
  throw refused(op, attr, std::to_string(heads),
                fmt::format("a divisor of the last axis of '{}' {}", arg(g, op, i).name,
                            shape_text(shape(g, op, i))));
}

/// The number of queries of a sequence that a rank has.
int64_t own_queries(const Graph& g, const Op& op, kernels::AttentionShape s) {
  return s.seq / expect_context(g, op);
}

std::vector<TensorSpec> infer_attend(const Graph& g, const Op& op) {
  const kernels::AttentionShape s = attend_shape(g, op, 0);
  expect_shape(g, op, 3, {s.heads});
  const DType dtype = arg(g, op, 0).dtype;
  const int64_t queries = own_queries(g, op, s);
  return {{{s.batch, queries, s.heads * s.value_dim}, dtype},
          {{s.batch, s.heads, queries}, stats_dtype(dtype)}};
}

/// One part of a rank's queries of a sequence: its shape, and its first elements in q and its
/// gradient, k, v, ctx and lse.
struct QueryPart {
  kernels::AttentionShape s;
  int64_t q, k, v, ctx, lse;
};

/// Calls f(part) for the parts of the sequences of a rank, of each the later part first.
template <class F>
void each_query_part(const Graph& g, const Op& op, kernels::AttentionShape whole, int64_t rank,
                     F f) {
  const int64_t n = attr_int(op, "context"), half = whole.seq / (2 * n);
  const int64_t number = group_of(g, op).place(rank);
  for (int64_t b = 0; b < whole.batch; ++b) {
    for (const int64_t later : {1, 0}) {
      const int64_t part = later == 1 ? 2 * n - 1 - number : number;
      const int64_t row = b * 2 * half + later * half;  // of queries
      QueryPart p = {whole, 0, 0, 0, 0, 0};
      p.s.batch = 1, p.s.first = part * half, p.s.seq = (part + 1) * half, p.s.add = true;
      p.q = row * whole.q_pitch;
      p.k = b * whole.seq * whole.k_pitch, p.v = b * whole.seq * whole.v_pitch;
      p.ctx = row * whole.heads * whole.value_dim, p.lse = row * whole.heads;
      f(p);
    }
  }
}

/// Work of products over all pairs of a query and a key that it sees. The op's input number `query`
/// is q.
Work seen_work(const Graph& g, const Op& op, size_t query, double of_keys, double of_values) {
  const kernels::AttentionShape s = attend_shape(g, op, query);
  const int64_t unseen = s.window == 0 || s.window > s.seq ? 0 : s.seq - s.window;
  const double seen = triangle(s.seq) - triangle(unseen);
  return pairs_work(g, op, s, seen / static_cast<double>(expect_context(g, op)), of_keys,
                    of_values);
}

Work work_attend(const Graph& g, const Op& op, const WorkContext&) {
  return seen_work(g, op, 0, 1, 1);
}

void gradient_attend(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId ctx = op.outputs[0], lse = op.outputs[1], sinks = input_or_none(op, 3);
  const size_t parts = std::min<size_t>(op.inputs.size(), 3);
  if (std::any_of(op.inputs.begin(), op.inputs.begin() + parts,
                  [&](TensorId t) { return c.needs(t); })) {
    std::vector<TensorId> inputs = {c.grad(ctx), ctx, lse};
    inputs.insert(inputs.end(), op.inputs.begin(), op.inputs.end());
    const OpId dx = c.emit(kAttendDx, "dx", inputs, all_attrs(op));
    for (size_t i = 0; i < parts; ++i)
      if (c.needs(op.inputs[i])) c.add(op.inputs[i], c.graph().out(dx, i));
  }
  if (sinks.valid() && c.needs(sinks)) {
    Attrs attrs = all_attrs(op);
    std::erase_if(attrs, [](const auto& a) {
      return a.first != "context" && a.first != "group" && a.first != "stride";
    });
    const OpId dw =
        c.emit(kAttendDsinks, "dw", {lse, c.grad(ctx), ctx, sinks, c.grad(sinks)}, attrs, true);
    c.set(sinks, c.graph().out(dw));
  }
}

/// Can be cut along the batch only: a part of the positions would lack the keys before it, and the
/// last axis of a q that holds k and v, too, is [3, heads, columns].
std::vector<AxisTuple> axes_attend(const Graph&, const Op&) {
  return {{{0, 0, 0, kWhole}, {0, 0}}};
}

Bytes scratch(const Graph& g, const Op& op, size_t query, Bytes elem_bytes) {
  return attention_scratch(attend_shape(g, op, query), elem_bytes);
}

/// Returns the operands from input i, q, on.
template <class T>
kernels::AttentionIn<T> operands(const KernelCall<T>& c, size_t i, kernels::AttentionShape s) {
  kernels::AttentionIn<T> in = {c.in(i), c.in(i + 1), c.in(i + 2)};
  if (in.k == nullptr) in = in_qkv<T>(c.in(i), s);
  in.sinks = c.wide(i + 3);
  return in;
}

constexpr auto run_attend = []<class T>(const KernelCall<T>& c) {
  const kernels::AttentionShape s = attend_shape(c.graph, c.op, 0);
  const kernels::AttentionIn<T> in = operands(c, 0, s);
  if (!c.op.attrs.contains("context")) {
    c.k.attention(c.out(0), c.wide_out(1), in, s, c.scratch, c.stream);
    return;
  }
  each_query_part(c.graph, c.op, s, c.rank.rank, [&](const QueryPart& p) {
    c.k.attention(c.out(0) + p.ctx, c.wide_out(1) + p.lse,
                  {in.q + p.q, in.k + p.k, in.v + p.v, in.sinks}, p.s, c.scratch, c.stream);
  });
};

std::vector<TensorSpec> infer_dx_attend(const Graph& g, const Op& op) {
  const kernels::AttentionShape s = attend_shape(g, op, kQueryOfDx);
  const int64_t queries = own_queries(g, op, s);
  const Shape ctx = {s.batch, queries, s.heads * s.value_dim};
  expect_shape(g, op, 0, ctx);
  expect_shape(g, op, 1, ctx);
  expect_shape(g, op, 2, {s.batch, s.heads, queries});
  expect_shape(g, op, kQueryOfDx + 3, {s.heads});
  std::vector<TensorSpec> specs;
  for (size_t i = kQueryOfDx; i < kQueryOfDx + 3 && has(op, i); ++i)
    specs.push_back({shape(g, op, i), arg(g, op, i).dtype});
  return specs;
}

/// Five products: the recomputed scores, dq and dk; dprob and dv.
Work work_dx_attend(const Graph& g, const Op& op, const WorkContext&) {
  return seen_work(g, op, kQueryOfDx, 3, 2);
}

constexpr auto run_dx_attend = []<class T>(const KernelCall<T>& c) {
  const kernels::AttentionShape s = attend_shape(c.graph, c.op, kQueryOfDx);
  const bool one = c.op.outputs.size() == 1;
  const auto out =
      one ? out_qkv<T>(c.out(0), s) : kernels::AttentionOut<T>{c.out(0), c.out(1), c.out(2)};
  const kernels::AttentionIn<T> in = operands(c, kQueryOfDx, s);
  if (!c.op.attrs.contains("context")) {
    c.k.attention_dx(out, c.in(0), c.in(1), in, c.wide(2), s, c.scratch, c.stream);
    return;
  }
  start_from(c, out.dk, nullptr, s.batch * s.seq * s.k_pitch);
  start_from(c, out.dv, nullptr, s.batch * s.seq * s.v_pitch);
  each_query_part(c.graph, c.op, s, c.rank.rank, [&](const QueryPart& p) {
    c.k.attention_dx({out.dq + p.q, out.dk + p.k, out.dv + p.v}, c.in(0) + p.ctx, c.in(1) + p.ctx,
                     {in.q + p.q, in.k + p.k, in.v + p.v, in.sinks}, c.wide(2) + p.lse, p.s,
                     c.scratch, c.stream);
  });
};

/// Returns the sizes of attend_dsinks, which reads neither q nor k: their width is 1.
kernels::AttentionShape dsinks_shape(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, {kAny, kAny, kAny});
  const Shape& lse = shape(g, op, 0);
  expect_shape(g, op, 1, {lse[0], lse[2], kAny});
  expect_shape(g, op, 2, shape(g, op, 1));
  expect_shape(g, op, 3, {lse[1]});
  expect_shape(g, op, 4, {lse[1]});
  kernels::AttentionShape s = {lse[0], lse[2], lse[1], 1};
  s.value_dim = cols_of(shape(g, op, 1)) / s.heads;
  if (s.value_dim * s.heads == cols_of(shape(g, op, 1))) return s;
  throw user_error(
      "op '{}' ({}): input 0 '{}' is {}, allowed: a number of heads that divides the last axis of "
      "'{}' {}",
      op.name, g.def(op).name, arg(g, op, 0).name, shape_text(lse), arg(g, op, 1).name,
      shape_text(shape(g, op, 1)));
}

std::vector<TensorSpec> infer_dsinks(const Graph& g, const Op& op) {
  dsinks_shape(g, op);
  return {{shape(g, op, 3), gradient_dtype(op, arg(g, op, 2).dtype)}};
}

constexpr auto run_dsinks = []<class T>(const KernelCall<T>& c) {
  const kernels::AttentionShape s = dsinks_shape(c.graph, c.op);
  if (!c.op.attrs.contains("context")) {
    c.k.attention_dsinks(c.wide_out(0), c.wide(0), c.in(1), c.in(2), c.wide(3), c.wide(4), s,
                         c.stream);
    return;
  }
  const kernels::Wide<T>* acc = c.wide(4);
  // The log-sum-exps are those of one part of a sequence after the other.
  kernels::AttentionShape part = s;
  part.batch = 1, part.seq = s.seq / 2;
  for (int64_t p = 0; p < 2 * s.batch; ++p) {
    const int64_t row = p * part.seq, ctx = row * s.heads * s.value_dim;
    c.k.attention_dsinks(c.wide_out(0), c.wide(0) + row * s.heads, c.in(1) + ctx, c.in(2) + ctx,
                         c.wide(3), acc, part, c.stream);
    acc = c.wide_out(0);
  }
};

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
  return {.batch = qkv[0], .seq = qkv[1], .heads = heads, .head_dim = qkv[2] / (3 * heads)};
}

Work pairs_work(const Graph& g, const Op& op, const kernels::AttentionShape& s, double pairs,
                double of_keys, double of_values) {
  const double all = triangle(s.seq);
  const auto head_dim = static_cast<double>(s.head_dim);
  const double cols = of_keys * head_dim + of_values * static_cast<double>(s.value_dim);
  return {.flops = 2 * static_cast<double>(s.batch * s.heads) * pairs * cols,
          .bytes = io_bytes(g, op),
          .matrix = {.kind = MatrixWork::Kind::kAttention,
                     .batch = static_cast<double>(s.batch),
                     .seq = static_cast<double>(s.seq),
                     .heads = static_cast<double>(s.heads),
                     .kv_heads = static_cast<double>(s.kv_heads),
                     .head_dim = head_dim,
                     .share = pairs * cols / (all * head_dim * (of_keys + of_values)),
                     .seen = pairs / all,
                     .value_dim = static_cast<double>(s.value_dim),
                     .backward = of_keys > 1}};
}

Bytes attention_scratch(const kernels::AttentionShape& s, Bytes elem_bytes) {
  return elem_bytes == 8 ? kernels::table<double>().attention_work_bytes(s)
                         : kernels::table<float>().attention_work_bytes(s);
}

kernels::AttentionShape attend_shape(const Graph& g, const Op& op, size_t i, int64_t times) {
  if (has(op, i + 1) != has(op, i + 2)) {
    throw user_error("op '{}' ({}): give k and v, or neither where q holds them, too", op.name,
                     g.def(op).name);
  }
  const bool one = !has(op, i + 1);
  expect_shape(g, op, i, {kAny, kAny, kAny});
  const Shape& q = shape(g, op, i);
  kernels::AttentionShape s = {.batch = q[0], .seq = q[1], .heads = expect_attr(op, "heads", 1)};
  if (one) s = attention_shape(g, op, i);
  const int64_t kv_heads = attr_int(op, "kv_heads", s.heads);
  if (kv_heads < 1 || s.heads % kv_heads != 0 || (one && kv_heads != s.heads)) {
    throw refused(op, "kv_heads", std::to_string(kv_heads),
                  fmt::format("{}heads = {}", one ? "" : "a divisor of ", s.heads) +
                      (one ? ", where q holds k and v" : ""));
  }
  s.window = attr_int(op, "window", 0);
  if (s.window < 0) {
    throw refused(op, "window", std::to_string(s.window), "0 (none), or a number of keys above 0");
  }
  s.scale = attr_double(op, "scale", 0);
  if (op.attrs.contains("scale") && !(s.scale > 0 && std::isfinite(s.scale))) {
    throw refused(op, "scale", fmt::format("{}", s.scale), "a number above 0");
  }
  s.own = own_kernels(op);
  const int64_t context = times > 0 ? times : expect_context(g, op);
  if (one && context == 1) return s;
  if (one || (context > 1 && shape(g, op, i + 1).size() != 3)) {
    throw refused(op, "context", std::to_string(context), "1, or k and v of their own");
  }
  s.seq = q[1] * context;
  s.kv_heads = kv_heads;
  s.head_dim = width_of(g, op, i, "heads", s.heads);
  expect_shape(g, op, i + 1, {s.batch, s.seq, s.kv_heads * s.head_dim});
  expect_shape(g, op, i + 2, {s.batch, s.seq, kAny});
  s.value_dim = width_of(g, op, i + 2, "kv_heads", s.kv_heads);
  s.q_pitch = q[2];
  s.k_pitch = cols_of(shape(g, op, i + 1));
  s.v_pitch = cols_of(shape(g, op, i + 2));
  return s;
}

const OpDef kAttend = {
    .name = "attend",
    .doc =
        "fused causal attention of q, k and v, or of a q that holds all three, with attrs heads "
        "and kv_heads, scale (1/sqrt(columns of a head)) and window (keys that a query sees); a "
        "sink is one more score of each query of a head; also outputs the log-sum-exp of the "
        "scores",
    .inputs = {{"q", Role::kQuery}, optional("k"), optional("v"), optional("sinks")},
    .outputs = {{"ctx"}, {"lse"}},
    .infer = infer_attend,
    .work = work_attend,
    .gradient = gradient_attend,
    .axes = axes_attend,
    .scratch_bytes = [](const Graph& g, const Op& op, Bytes b) { return scratch(g, op, 0, b); },
    .run = any_type(run_attend)};

const OpDef kAttendDx = {.name = "attend_dx",
                         .doc = "gradients of q, k and v through attend",
                         .inputs = {{"dctx"},
                                    {"ctx"},
                                    {"lse"},
                                    {"q", Role::kQuery},
                                    optional("k"),
                                    optional("v"),
                                    optional("sinks")},
                         .outputs = {{"dq"}, optional("dk"), optional("dv")},
                         .infer = infer_dx_attend,
                         .work = work_dx_attend,
                         .gradient = no_gradient,
                         .scratch_bytes = [](const Graph& g, const Op& op,
                                             Bytes b) { return scratch(g, op, kQueryOfDx, b); },
                         .run = any_type(run_dx_attend)};

const OpDef kAttendDsinks = {.name = "attend_dsinks",
                             .doc = "gradient of the sinks of attend [+ acc]",
                             .bound = Bound::kBytes,
                             .inputs = {{"lse"}, {"dctx"}, {"ctx"}, {"sinks"}, optional("acc")},
                             .outputs = {{"dsinks"}},
                             .infer = infer_dsinks,
                             .work = work_each<2, 1>,
                             .gradient = no_gradient,
                             .may_alias = {{0, 4}},
                             .run = any_type(run_dsinks)};

}  // namespace moe::ops
