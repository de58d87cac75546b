#include "engine/ops/rules.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace moe::ops {
namespace {

bool fits(const Shape& shape, const Shape& allowed) {
  return shape.size() == allowed.size() &&
         std::equal(shape.begin(), shape.end(), allowed.begin(),
                    [](int64_t n, int64_t want) { return want == kAny ? n > 0 : n == want; });
}

std::string allowed_text(const Shape& allowed) {
  std::vector<std::string> lengths;
  for (const int64_t n : allowed) lengths.push_back(n == kAny ? "*" : std::to_string(n));
  return fmt::format("[{}]", fmt::join(lengths, ","));
}

void expect_rules(const Graph& graph, const Op& op, size_t i, const Shape& allowed, bool index) {
  if (!has(op, i)) return;
  const Tensor& tensor = arg(graph, op, i);
  if (!fits(tensor.shape, allowed) || (tensor.dtype == DType::kI32) != index) {
    throw user_error("op '{}' ({}): input {} '{}' is {} {}, expected {} {}", op.name,
                     graph.def(op).name, i, tensor.name, name_of(tensor.dtype),
                     shape_text(tensor.shape), index ? "i32" : "floating point",
                     allowed_text(allowed));
  }
}

}  // namespace

void expect_shape(const Graph& graph, const Op& op, size_t i, const Shape& allowed) {
  expect_rules(graph, op, i, allowed, false);
}

void expect_index(const Graph& graph, const Op& op, size_t i, const Shape& allowed) {
  expect_rules(graph, op, i, allowed, true);
}

void expect_row_ends(const Graph& graph, const Op& op, size_t i, Shape allowed) {
  if (!has(op, i)) return;
  const Shape& ends = shape(graph, op, i);
  const bool packed = arg(graph, op, 0).stored_rows > 0;
  if (packed && !ends.empty() && ends[0] % allowed[0] == 0) allowed[0] = ends[0];
  expect_index(graph, op, i, allowed);
}

void expect_rows(const Graph& graph, const Op& op, size_t i, int64_t rows, int64_t cols) {
  if (!has(op, i)) return;
  const Shape& have = expect_matrix(graph, op, i, 1);
  if (rows_of(have) == rows && cols_of(have) == cols) return;
  throw user_error("op '{}' ({}): input {} '{}' is {}, expected {} rows of {} columns", op.name,
                   graph.def(op).name, i, arg(graph, op, i).name, shape_text(have), rows, cols);
}

int64_t expect_cols(const Graph& graph, const Op& op, int64_t all) {
  const int64_t cols = attr_int(op, "cols", all);
  if (cols >= 1 && cols <= all) return cols;
  throw user_error("op '{}' ({}): attribute cols is {}, allowed: 1 to {}, the columns of input 0",
                   op.name, graph.def(op).name, cols, all);
}

const Shape& expect_matrix(const Graph& graph, const Op& op, size_t i, size_t min_rank) {
  const Tensor& tensor = arg(graph, op, i);
  const bool positive =
      std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t n) { return n > 0; });
  if (tensor.shape.size() < min_rank || !positive || tensor.dtype == DType::kI32) {
    throw user_error(
        "op '{}' ({}): input {} '{}' is {} {}, expected floating point with {} or more axes, none "
        "of them empty",
        op.name, graph.def(op).name, i, tensor.name, name_of(tensor.dtype),
        shape_text(tensor.shape), min_rank);
  }
  return tensor.shape;
}

int64_t expect_attr(const Op& op, std::string_view key, int64_t least) {
  const int64_t value = attr_int(op, key, least - 1);
  if (value < least)
    throw user_error("op '{}': attribute '{}' must be given, a whole number of at least {}",
                     op.name, key, least);
  return value;
}

Shape token_shape(const Op& op, int64_t rows, int64_t cols) {
  const int64_t seq = attr_int(op, "seq", 0);
  if (seq <= 0) return {rows, cols};
  if (rows % seq != 0) {
    throw user_error("op '{}': attribute 'seq' = {}, allowed: a divisor of the {} rows", op.name,
                     seq, rows);
  }
  return {rows / seq, seq, cols};
}

Attrs seq_attr(const Shape& shape) {
  if (shape.size() < 3) return {};
  return {{"seq", shape[shape.size() - 2]}};
}

double share_of(const Op& op) {
  return op.rows.share.value_or(1) * RowCut(op).share() / static_cast<double>(op.rows.round.of);
}

double io_bytes(const Graph& graph, const Op& op) {
  double bytes = 0;
  for (const TensorId t : op.inputs) {
    if (t.valid()) bytes += static_cast<double>(graph.bytes(t));
  }
  for (const TensorId t : op.outputs) bytes += static_cast<double>(graph.bytes(t));
  return bytes;
}

int64_t expect_context(const Graph& graph, const Op& op) {
  const int64_t context = attr_int(op, "context", 1), members = group_of(graph, op).size;
  if (context >= 1 && members % context == 0) return context;
  throw user_error(
      "op '{}' ({}): attribute 'context' = {}, allowed: a divisor of the {} ranks of its group",
      op.name, graph.def(op).name, context, members);
}

kernels::ScoreRule score_rule(const Op& op) {
  const std::string scores = attr_string(op, "scores", "softmax");
  if (scores == "softmax") return kernels::ScoreRule::kSoftmax;
  if (scores == "sigmoid") return kernels::ScoreRule::kSigmoid;
  throw user_error("op '{}': attribute 'scores' is '{}', allowed: softmax, sigmoid", op.name,
                   scores);
}

kernels::WeightRule weight_rule(const Op& op) {
  const std::string weight = attr_string(op, "weight", "prob");
  if (weight == "prob") return kernels::WeightRule::kProb;
  if (weight == "renorm") return kernels::WeightRule::kRenorm;
  if (weight == "one") return kernels::WeightRule::kOne;
  throw user_error("op '{}': attribute 'weight' is '{}', allowed: prob, renorm, one", op.name,
                   weight);
}

DType stored_dtype(const Op& op, DType default_value) {
  if (!op.attrs.contains("store")) return default_value;
  const std::string name = attr_string(op, "store");
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw user_error("op '{}': attribute 'store' is '{}', allowed: f16, bf16, f32", op.name, name);
}

}  // namespace moe::ops
