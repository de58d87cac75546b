// Causal attention of ranks that have two parts of each sequence, c and 2 n - 1 - c of 2 n (cp), in
// n steps (Ring Attention, Liu et al. 2023, arXiv 2310.01889; with these parts all steps are
// equally long): keys and values go from rank to rank (shift_rows), attend_step attends to those of
// one rank, and join_steps weights the steps' contexts by their log-sum-exps. In the backward the
// keys and values go round once more, and their gradients with them, to the rank where they began.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/ops/attention_shape.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr size_t kQueryOfStep = 3;  // the input q of attend_step_dx
constexpr size_t kSinks = 3;        // an input of attend_step and join_steps
constexpr size_t kFirstPart = 4;    // the context and the log-sum-exp of step 0, of join_steps

kernels::AttentionShape step_shape(const Graph& g, const Op& op, size_t query) {
  const kernels::AttentionShape s = attend_shape(g, op, query, 1);
  const int64_t steps = expect_context(g, op), step = expect_attr(op, "step", 0);
  if (s.seq % 2 != 0 || step >= steps || s.window > 0) {
    throw user_error(
        "op '{}' ({}): {} tokens, step {} of {}, window {}; needs an even number of tokens (two "
        "parts), a step of attr context, and no window",
        op.name, g.def(op).name, s.seq, step, steps, s.window);
  }
  return s;
}

std::vector<TensorSpec> infer_attend_ring(const Graph& g, const Op& op) {
  const kernels::AttentionShape s = step_shape(g, op, 0);
  expect_shape(g, op, kSinks, {s.heads});
  const DType dtype = arg(g, op, 0).dtype;
  return {{{s.batch, s.seq, s.heads * s.value_dim}, dtype},
          {{s.batch, s.heads, s.seq}, stats_dtype(dtype)}};
}

/// Step 0 has its own triangle, the others half of all pairs.
Work step_work(const Graph& g, const Op& op, size_t query, double of_keys, double of_values) {
  const kernels::AttentionShape s = step_shape(g, op, query);
  const double half = 0.5 * static_cast<double>(s.seq) * static_cast<double>(s.seq);
  const double pairs = attr_int(op, "step") == 0 ? triangle(s.seq) : half;
  return pairs_work(g, op, s, pairs, of_keys, of_values);
}

Work work_attend_ring(const Graph& g, const Op& op, const WorkContext&) {
  return step_work(g, op, 0, 1, 1);
}
Work work_dx_attend_ring(const Graph& g, const Op& op, const WorkContext&) {
  return step_work(g, op, kQueryOfStep, 3, 2);
}

/// The queries of one of a rank's two parts of a sequence, and the keys of a rank that they see.
struct StepPart {
  kernels::AttentionShape s;  // s.batch is 0: no keys
  int64_t q, k, v, ctx, lse;  // the first elements
  int64_t queries, values;    // numbers of elements of q, and of ctx
};

/// Calls f(StepPart) for both parts of all sequences.
template <class F>
void each_part(const Graph& g, const Op& op, const kernels::AttentionShape& own, int64_t rank,
               F f) {
  const Group group = group_of(g, op);
  const int64_t half = own.seq / 2, step = attr_int(op, "step"), place = group.place(rank);
  const int64_t from = (place - step + group.size) % group.size;
  for (int64_t i = 0; i < 2 * own.batch; ++i) {
    const int64_t later = i % 2, row = i * half;
    StepPart p = {own,
                  row * own.q_pitch,
                  i / 2 * own.seq * own.k_pitch,
                  i / 2 * own.seq * own.v_pitch,
                  row * own.heads * own.value_dim,
                  row * own.heads,
                  half * own.q_pitch,
                  half * own.heads * own.value_dim};
    p.s.batch = 1, p.s.add = true;
    if (step == 0) {
      p.s.first = later * half, p.s.seq = (1 + later) * half;
    } else {
      // Of a rank before, all queries see the first part; of one behind, the later see both.
      p.s.known = p.s.first = from < place ? half : 2 * half;
      p.s.seq = p.s.first + half;
      if (from > place && later == 0) p.s.batch = 0;
    }
    f(p);
  }
}

constexpr auto run_attend_ring = []<class T>(const KernelCall<T>& c) {
  const kernels::AttentionShape own = step_shape(c.graph, c.op, 0);
  each_part(c.graph, c.op, own, c.rank.rank, [&](const StepPart& p) {
    using W = kernels::Wide<T>;
    if (p.s.batch == 0) {
      start_from(c, c.out(0) + p.ctx, nullptr, p.values);
      std::fill_n(c.wide_out(1) + p.lse, p.s.heads * own.seq / 2, std::numeric_limits<W>::lowest());
      return;
    }
    c.k.attention(c.out(0) + p.ctx, c.wide_out(1) + p.lse,
                  {c.in(0) + p.q, c.in(1) + p.k, c.in(2) + p.v, c.wide(kSinks)}, p.s, c.scratch,
                  c.stream);
  });
};

std::vector<TensorSpec> infer_dx_attend_ring(const Graph& g, const Op& op) {
  const kernels::AttentionShape s = step_shape(g, op, kQueryOfStep);
  const Shape ctx = {s.batch, s.seq, s.heads * s.value_dim};
  expect_shape(g, op, 0, ctx);
  expect_shape(g, op, 1, ctx);
  expect_shape(g, op, 2, {s.batch, s.heads, s.seq});
  std::vector<TensorSpec> specs;
  for (size_t i = kQueryOfStep; i < kQueryOfStep + 3; ++i) {
    specs.push_back({shape(g, op, i), arg(g, op, i).dtype});
  }
  return specs;
}

constexpr auto run_dx_attend_ring = []<class T>(const KernelCall<T>& c) {
  const kernels::AttentionShape own = step_shape(c.graph, c.op, kQueryOfStep);
  const size_t q = kQueryOfStep;
  start_from(c, c.out(1), nullptr, own.batch * own.seq * own.k_pitch);
  start_from(c, c.out(2), nullptr, own.batch * own.seq * own.v_pitch);
  each_part(c.graph, c.op, own, c.rank.rank, [&](const StepPart& p) {
    if (p.s.batch == 0) return start_from(c, c.out(0) + p.q, nullptr, p.queries);
    c.k.attention_dx({c.out(0) + p.q, c.out(1) + p.k, c.out(2) + p.v}, c.in(0) + p.ctx,
                     c.in(1) + p.ctx, {c.in(q) + p.q, c.in(q + 1) + p.k, c.in(q + 2) + p.v},
                     c.wide(2) + p.lse, p.s, c.scratch, c.stream);
  });
};

std::vector<TensorSpec> infer_join_attend_ring(const Graph& g, const Op& op) {
  const int64_t steps = expect_context(g, op);
  if (op.inputs.size() != kFirstPart + static_cast<size_t>(2 * steps)) {
    throw user_error(
        "op '{}' (join_steps): {} inputs, expected q, k, v, sinks and {} pairs of context and "
        "log-sum-exp",
        op.name, op.inputs.size(), steps);
  }
  const Tensor &ctx = arg(g, op, kFirstPart), &lse = arg(g, op, kFirstPart + 1);
  for (size_t i = kFirstPart; i < op.inputs.size(); i += 2) {
    expect_shape(g, op, i, ctx.shape);
    expect_shape(g, op, i + 1, lse.shape);
  }
  return {{ctx.shape, ctx.dtype}, {lse.shape, lse.dtype}};
}

/// Reads the steps' contexts, and writes one.
Work work_join(const Graph& g, const Op& op, const WorkContext&) {
  double bytes = 0;
  for (size_t i = kFirstPart; i < op.inputs.size(); ++i) {
    bytes += static_cast<double>(g.bytes(op.inputs[i]));
  }
  for (const TensorId t : op.outputs) bytes += static_cast<double>(g.bytes(t));
  return {.flops = 2 * static_cast<double>(attr_int(op, "context") *
                                           num_elements(g.tensor(op.outputs[0]).shape)),
          .bytes = bytes};
}

constexpr auto run_join_attend_ring = []<class T>(const KernelCall<T>& c) {
  using W = kernels::Wide<T>;
  const Shape &ctx = c.in_shape(kFirstPart), &lse = c.in_shape(kFirstPart + 1);
  const int64_t heads = lse[1], half = lse[2] / 2, columns = ctx[2] / heads;
  const int64_t steps = attr_int(c.op, "context");
  std::vector<W> weight(static_cast<size_t>(steps));
  for (int64_t n = 0; n < num_elements(lse); ++n) {
    const int64_t part = n / (heads * half), head = n / half % heads, i = n % half;
    const int64_t at = ((part * half + i) * heads + head) * columns;
    const auto lse_of = [&](int64_t s) {
      return c.wide(kFirstPart + 1 + 2 * static_cast<size_t>(s))[n];
    };
    W top = lse_of(0), sum = 0;
    for (int64_t s = 1; s < steps; ++s) top = std::max(top, lse_of(s));
    for (int64_t s = 0; s < steps; ++s)
      sum += weight[static_cast<size_t>(s)] = std::exp(lse_of(s) - top);
    c.wide_out(1)[n] = top + std::log(sum);
    for (int64_t col = at; col < at + columns; ++col) {
      W value = 0;
      for (int64_t s = 0; s < steps; ++s) {
        value += weight[static_cast<size_t>(s)] / sum *
                 static_cast<W>(c.in(kFirstPart + 2 * static_cast<size_t>(s))[col]);
      }
      c.out(0)[col] = static_cast<T>(value);
    }
  }
};

/// Returns what shift_rows makes of two tensors.
std::pair<TensorId, TensorId> shifted(GradContext& c, const std::string& name, const Op& op,
                                      TensorId a, TensorId b) {
  const Graph& g = c.graph();
  const OpId id = c.emit(kShiftRows, name, {a, b}, group_attrs(group_of(g, op), g.num_ranks));
  return {g.out(id), g.out(id, 1)};
}

void gradient_join_attend_ring(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId ctx = op.outputs[0], lse = op.outputs[1], dctx = c.grad(ctx), q = op.inputs[0];
  const TensorId sinks = input_or_none(op, kSinks);
  const int64_t steps = attr_int(op, "context");
  std::pair<TensorId, TensorId> kv = {op.inputs[1], op.inputs[2]}, sums;
  TensorId dq;
  for (int64_t step = 0; step < steps; ++step) {
    const std::string number = std::to_string(step);
    const auto now = kv;
    if (step + 1 < steps) kv = shifted(c, "kv_shift" + number, op, kv.first, kv.second);
    Attrs attrs = all_attrs(op);
    attrs["step"] = step;
    const OpId dx = c.emit(kAttendStepDx, "dx" + number, {dctx, ctx, lse, q, now.first, now.second},
                           std::move(attrs));
    const auto added = [&](const char* of, TensorId sum, size_t output) {
      const TensorId own = c.graph().out(dx, output);
      if (!sum.valid()) return own;
      const std::string_view kind = c.graph().table().basic(BasicOp::kAdd).name;
      return c.graph().out(c.emit(kind, of + number, {sum, own}));
    };
    dq = added("dq", dq, 0);
    sums = {added("dk", sums.first, 1), added("dv", sums.second, 2)};
    sums = shifted(c, "dkv_shift" + number, op, sums.first, sums.second);
  }
  c.add(q, dq);
  c.add(op.inputs[1], sums.first);
  c.add(op.inputs[2], sums.second);
  if (!sinks.valid() || !c.needs(sinks)) return;
  Attrs attrs = group_attrs(group_of(c.graph(), op), c.graph().num_ranks);
  attrs["context"] = steps;
  const OpId dw = c.emit(kAttendDsinks, "dw", {lse, dctx, ctx, sinks, c.grad(sinks)}, attrs, true);
  c.set(sinks, c.graph().out(dw));
}

std::vector<TensorSpec> infer_shift(const Graph& g, const Op& op) {
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    specs.push_back({expect_matrix(g, op, i), arg(g, op, i).dtype});
  }
  return specs;
}

Work work_shift(const Graph& g, const Op& op, const WorkContext&) {
  double bytes = 0;
  for (const TensorId t : op.inputs) bytes += static_cast<double>(g.bytes(t));
  return {.bytes = bytes};
}

/// Along the batch.
std::vector<AxisTuple> axes_shift(const Graph&, const Op& op) {
  return {{std::vector<int>(op.inputs.size(), 0), std::vector<int>(op.outputs.size(), 0)}};
}
std::vector<AxisTuple> axes_step(const Graph&, const Op&) {
  return {{{0, 0, 0, kWhole}, {0, 0}}};
}
std::vector<AxisTuple> axes_join(const Graph&, const Op& op) {
  AxisTuple tuple{std::vector<int>(op.inputs.size(), 0), {0, 0}};
  tuple.inputs[kSinks] = kWhole;
  return {tuple};
}

constexpr int kMostTensors = 1 << 14;

}  // namespace

const OpDef kShiftRows = {
    .name = "shift_rows",
    .doc = "sends tensors to the next rank of the group, and gets those of the one before",
    .lane = LaneKind::kComm,
    .collective = Collective::kShift,
    .payload = Payload::kActivations,
    .inputs = {several("x", kMostTensors)},
    .outputs = {several("y", kMostTensors)},
    .infer = infer_shift,
    .work = work_shift,
    .gradient = no_gradient,
    .axes = axes_shift};

const OpDef kAttendStep = {
    .name = "attend_step",
    .doc =
        "attend, to the keys that ranks over cp have at attr step of attr context steps in a ring; "
        "without any, the context is 0 and the log-sum-exp the lowest number",
    .inputs = {{"q", Role::kQuery}, {"k"}, {"v"}, optional("sinks")},
    .outputs = {{"ctx"}, {"lse"}},
    .infer = infer_attend_ring,
    .work = work_attend_ring,
    .gradient = no_gradient,
    .axes = axes_step,
    .scratch_bytes = [](const Graph& g, const Op& op,
                        Bytes b) { return attention_scratch(step_shape(g, op, 0), b); },
    .run = any_type(run_attend_ring)};

const OpDef kAttendStepDx = {
    .name = "attend_step_dx",
    .doc = "gradients of q, k and v through one step, from the context and log-sum-exp of all",
    .inputs = {{"dctx"}, {"ctx"}, {"lse"}, {"q", Role::kQuery}, {"k"}, {"v"}},
    .outputs = {{"dq"}, {"dk"}, {"dv"}},
    .infer = infer_dx_attend_ring,
    .work = work_dx_attend_ring,
    .gradient = no_gradient,
    .scratch_bytes = [](const Graph& g, const Op& op,
                        Bytes b) { return attention_scratch(step_shape(g, op, kQueryOfStep), b); },
    .run = any_type(run_dx_attend_ring)};

const OpDef kJoinSteps = {
    .name = "join_steps",
    .doc = "the context and log-sum-exp over all steps of a ring, of those of each",
    .bound = Bound::kBytes,
    .inputs = {{"q"}, {"k"}, {"v"}, optional("sinks"), several("parts", kMostTensors)},
    .outputs = {{"ctx"}, {"lse"}},
    .infer = infer_join_attend_ring,
    .work = work_join,
    .gradient = gradient_join_attend_ring,
    .axes = axes_join,
    .run = wide_types(run_join_attend_ring)};

}  // namespace moe::ops
