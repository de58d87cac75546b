// What a rank of a group has of the input tokens, and of what has a row per position, where the
// group splits the rows of sequences (tp, cp) and the vocabulary (tp). These ops work on the CPU.
#include "engine/ops/defs.h"
#include "engine/ops/own_rows.h"

namespace moe::ops {
namespace {

size_t axis_of_own_part(const Graph& g, const Op& op) {
  const auto axes = static_cast<int64_t>(shape(g, op, 0).size());
  const int64_t axis = attr_int(op, "axis", -1);
  if (axis >= 0 && axis < axes) return static_cast<size_t>(axis);
  throw user_error("op '{}' ({}): attribute 'axis' = {}, allowed: 0 to {}", op.name, g.def(op).name,
                   axis, axes - 1);
}

std::vector<TensorSpec> infer_rows_own_part(const Graph& g, const Op& op) {
  Shape own = shape(g, op, 0);
  int64_t& length = own[axis_of_own_part(g, op)];
  const int64_t parts = group_of(g, op).size * (expect_context(g, op) > 1 ? 2 : 1);
  if (length % parts != 0) {
    throw user_error(
        "op '{}' (own_rows): the length {} of the axis must be a multiple of {}, the parts of the "
        "ranks of the group",
        op.name, length, parts);
  }
  length /= group_of(g, op).size;
  return {{own, arg(g, op, 0).dtype}};
}

/// Calls f(whole, own, n): n elements of the whole tensor and of the rank's are the same row.
template <class F>
void each_own_row(const Graph& g, const Op& op, const Shape& whole, int64_t rank, F f) {
  const auto axis = static_cast<size_t>(attr_int(op, "axis"));
  const OwnRows rows(g, op, whole[axis], group_of(g, op).place(rank));
  int64_t outer = 1, inner = 1;
  for (size_t a = 0; a < axis; ++a) outer *= whole[a];
  for (size_t a = axis + 1; a < whole.size(); ++a) inner *= whole[a];
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < rows.own; ++i) {
      f((o * whole[axis] + rows.at(i)) * inner, (o * rows.own + i) * inner, inner);
    }
  }
}

constexpr auto run_rows_own_part = []<class T>(const KernelCall<T>& c) {
  const auto copy_rows = [&](const auto* from, auto* to) {
    each_own_row(
        c.graph, c.op, c.in_shape(0), c.rank.rank,
        [&](int64_t whole, int64_t own, int64_t n) { std::copy_n(from + whole, n, to + own); });
  };
  if (c.graph.tensor(c.op.inputs[0]).dtype == DType::kI32) {
    copy_rows(c.in_i32(0), c.out_i32(0));
  } else {
    copy_rows(c.wide(0), c.wide_out(0));
  }
};

void gradient_rows(GradContext& c, OpId) {
  const Op op = c.op();
  const TensorId x = op.inputs[0];
  if (!c.needs(x)) return;
  Attrs attrs = all_attrs(op);
  attrs["rows"] = shape(c.graph(), op, 0)[axis_of_own_part(c.graph(), op)];
  const std::vector<TensorId> inputs = {c.grad(op.outputs[0]), c.grad(x)};
  const bool weight = c.graph().tensor(x).kind == TensorKind::kParam;
  if (weight) attrs["weight"] = int64_t{1};
  const char* const suffix = weight ? "dw" : "dx";
  c.set(x, c.graph().out(c.emit(kOwnRowsDw, suffix, inputs, std::move(attrs), weight)));
}

std::vector<TensorSpec> infer_rows_dw(const Graph& g, const Op& op) {
  Shape whole = expect_matrix(g, op, 0);
  whole[axis_of_own_part(g, op)] = expect_attr(op, "rows", 1);
  expect_shape(g, op, 1, whole);
  const DType dtype = arg(g, op, 0).dtype;
  return {{whole, attr_int(op, "weight") != 0 ? gradient_dtype(op, dtype) : dtype}};
}

constexpr auto run_rows_dw = []<class T>(const KernelCall<T>& c) {
  start_from(c, c.wide_out(0), c.wide(1), num_elements(c.out_shape(0)));
  each_own_row(c.graph, c.op, c.out_shape(0), c.rank.rank,
               [&](int64_t whole, int64_t own, int64_t n) {
                 for (int64_t i = 0; i < n; ++i) c.wide_out(0)[whole + i] += c.in(0)[own + i];
               });
};

std::vector<TensorSpec> infer_vocabulary(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny, kAny});
  expect_attr(op, "vocab", 1);
  group_of(g, op);
  return {{shape(g, op, 0), DType::kI32}};
}

constexpr auto run_vocabulary = []<class T>(const KernelCall<T>& c) {
  const auto rows = static_cast<int32_t>(attr_int(c.op, "vocab"));
  const auto first = static_cast<int32_t>(group_of(c.graph, c.op).place(c.rank.rank)) * rows;
  const int64_t n = num_elements(c.in_shape(0));
  std::transform(c.in_i32(0), c.in_i32(0) + n, c.out_i32(0), [&](int32_t id) {
    if (id < 0) return -2;
    return id >= first && id < first + rows ? id - first : -1;
  });
};

std::vector<TensorSpec> infer_ahead(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny, kAny});
  const Shape& ids = shape(g, op, 0);
  if (expect_attr(op, "by", 1) < ids[1]) return {{ids, DType::kI32}};
  throw user_error("op '{}' (tokens_ahead): attribute 'by' = {}, allowed: less than the {} tokens",
                   op.name, attr_int(op, "by"), ids[1]);
}

constexpr auto run_ahead = []<class T>(const KernelCall<T>& c) {
  const Shape& ids = c.in_shape(0);
  const int64_t by = attr_int(c.op, "by");
  for (int64_t b = 0; b < ids[0]; ++b) {
    int32_t* const row = c.out_i32(0) + b * ids[1];
    std::copy_n(c.in_i32(0) + b * ids[1] + by, ids[1] - by, row);
    std::fill_n(row + ids[1] - by, by, static_cast<int32_t>(attr_int(c.op, "fill")));
  }
};

std::vector<AxisTuple> by_sequence(const Graph&, const Op&) {
  return {{{0}, {0}}};
}

std::vector<AxisTuple> along_batch(const Graph&, const Op& op) {
  if (attr_int(op, "axis", 1) == 0) return {};
  return {{{0}, {0}}};
}

}  // namespace

const OpDef kOwnRows = {
    .name = "own_rows",
    .doc =
        "the rows of x along attr axis that the rank has by its place in the group; with attr "
        "context = n of its two parts of 2 n (cp); attrs group, stride",
    .inputs = {{"x", Role::kAny}},
    .outputs = {{"own", Role::kAny}},
    .infer = infer_rows_own_part,
    .work = work_moves,
    .gradient = gradient_rows,
    .axes = along_batch,
    .run = wide_types(run_rows_own_part),
    .on_host = always};

const OpDef kOwnRowsDw = {
    .name = "own_rows_dw",
    .doc =
        "dx of attr rows rows along attr axis: dy at the rank's own rows, else 0 [+ acc]; attr "
        "weight=1: the gradient of a parameter",
    .inputs = {{"dy"}, optional("acc", Role::kAdded)},
    .outputs = {{"dx"}},
    .infer = infer_rows_dw,
    .work = work_moves,
    .gradient = no_gradient,
    .may_alias = {{0, 1}},
    .run = wide_types(run_rows_dw),
    .on_host = always};

const OpDef kOwnVocabulary = {
    .name = "own_vocabulary",
    .doc =
        "ids less the first of the attr vocab ids that the rank has by its place in the group, -1 "
        "for those of other ranks and -2 for negative ones; attrs group, stride",
    .inputs = {{"ids", Role::kIds}},
    .outputs = {{"own", Role::kIds}},
    .infer = infer_vocabulary,
    .work = work_moves,
    .gradient = no_gradient,
    .axes = along_batch,
    .run = any_type(run_vocabulary),
    .on_host = always};

const OpDef kTokensAhead = {
    .name = "tokens_ahead",
    .doc = "ids attr by places further on in their sequences, and attr fill beyond the ends",
    .inputs = {{"ids", Role::kIds}},
    .outputs = {{"ahead", Role::kIds}},
    .infer = infer_ahead,
    .work = work_moves,
    .gradient = no_gradient,
    .axes = by_sequence,
    .run = any_type(run_ahead),
    .on_host = always};

}  // namespace moe::ops
