// Functions that the op files share: reading arguments and attributes, checking shapes, counting
// bytes, and copying or clearing an output. Rules for rows of slots are in expert_rows.h.
#pragma once

#include <type_traits>

#include "engine/base/errors.h"
#include "engine/graph/autodiff.h"
#include "engine/graph/op_def.h"
#include "engine/ops/kernel_call.h"
#include "engine/ops/ops.h"
#include "engine/ops/row_cut.h"

namespace moe::ops {

/// In the shape given to expect_shape: an axis of any length.
constexpr int64_t kAny = -1;

inline bool has(const Op& op, size_t i) {
  return i < op.inputs.size() && op.inputs[i].valid();
}
inline const Tensor& arg(const Graph& graph, const Op& op, size_t i) {
  return graph.tensor(op.inputs[i]);
}
inline const Shape& shape(const Graph& graph, const Op& op, size_t i) {
  return arg(graph, op, i).shape;
}
/// Returns input i of an op; an invalid id when it is absent.
inline TensorId input_or_none(const Op& op, size_t i) {
  return i < op.inputs.size() ? op.inputs[i] : TensorId();
}
/// Returns the spec of an output of this shape whose rows are stored like those of `rows`, with its
/// type.
inline TensorSpec rows_like(const Tensor& rows, Shape shape) {
  return {std::move(shape), rows.dtype, rows.stored_rows};
}
inline int64_t cols_of(const Shape& shape) {
  return shape.back();
}
inline int64_t rows_of(const Shape& shape) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows;
}

/// Throws UserError naming op, tensor and what is allowed, unless input i is a floating-point
/// tensor of this shape; absent inputs pass.
void expect_shape(const Graph& graph, const Op& op, size_t i, const Shape& allowed);
/// Like expect_shape, for an i32 tensor.
void expect_index(const Graph& graph, const Op& op, size_t i, const Shape& allowed);
/// Like expect_index, for the row counts of an op. If its rows, input 0, are packed
/// (stored_rows.h), the first axis may also be a multiple: the counts of parts of the batch, one
/// after the other.
void expect_row_ends(const Graph& graph, const Op& op, size_t i, Shape allowed);
/// Throws UserError unless input i is absent or a floating-point tensor with `rows` rows (the
/// product of all axes but the last) and `cols` columns.
void expect_rows(const Graph& graph, const Op& op, size_t i, int64_t rows, int64_t cols);
/// Returns attr cols of an op that uses only the first columns of its rows of `all`; without the
/// attribute, all. Throws UserError unless it is 1 to `all`.
int64_t expect_cols(const Graph& graph, const Op& op, int64_t all);
/// Returns the shape of input i. Throws UserError unless it is a floating-point tensor of at least
/// min_rank axes, all of positive length.
const Shape& expect_matrix(const Graph& graph, const Op& op, size_t i, size_t min_rank = 2);
/// Returns the integer attribute `key`. Throws UserError when it is absent or below `least`.
int64_t expect_attr(const Op& op, std::string_view key, int64_t least);

/// Returns attr context of an op on parts of sequences, 1 where it is absent. Throws UserError
/// unless it divides the ranks of the op's group.
int64_t expect_context(const Graph& graph, const Op& op);

/// Returns attr scores: softmax (the default) or sigmoid. Throws UserError for any other value.
kernels::ScoreRule score_rule(const Op& op);
/// Returns attr weight: prob (the default), renorm or one. Throws UserError for any other value.
kernels::WeightRule weight_rule(const Op& op);

/// Returns [rows / seq, seq, cols] where the op has attr seq, else [rows, cols]. Throws UserError
/// when seq does not divide `rows`.
Shape token_shape(const Op& op, int64_t rows, int64_t cols);
/// Returns attr seq, for token_shape, of a gradient of this shape; no attribute for two axes.
Attrs seq_attr(const Shape& shape);

/// Returns the type of an op's statistics (mean, log-sum-exp): f32 where `dtype` is f16 or bf16.
inline DType stats_dtype(DType dtype) {
  return dtype == DType::kF16 ? DType::kF32 : wide_dtype(dtype);
}
/// Returns the type that attr store states of an output whose type does not follow from inputs: of
/// the activation that an op with only wide (f32) inputs outputs, or of a parameter's gradient;
/// `default_value` when absent. Throws UserError when attr store is none of f16, bf16,
/// f32.
DType stored_dtype(const Op& op, DType default_value);
/// Returns the type of a parameter's gradient that the op makes from activations of this type.
inline DType gradient_dtype(const Op& op, DType activations) {
  return stored_dtype(op, wide_dtype(activations));
}
/// Returns the bytes of a number of the gradient, the op's first output.
inline double gradient_bytes(const Graph& graph, const Op& op) {
  return static_cast<double>(dtype_bytes(graph.tensor(op.outputs[0]).dtype));
}

/// Whether the op is one part of the batch. A part reads and writes only its own rows.
inline bool is_part(const Op& op) {
  return op.rows.share.has_value();
}
/// The expected share of rows of an op that is a part of the batch, a part along the rows in use
/// (row_cut.h), a round, or all of these.
double share_of(const Op& op);

/// Returns the bytes of the op's inputs and outputs, each counted once.
double io_bytes(const Graph& graph, const Op& op);
inline Work elementwise_work(const Graph& graph, const Op& op, double flops) {
  return {.flops = flops, .bytes = io_bytes(graph, op)};
}

/// OpDef::work of an op with kFlops for each number of input kOf, and one more where the op has
/// input kAdded.
template <int kFlops, size_t kOf = 0, size_t kAdded = ~size_t{0}>
Work work_each(const Graph& graph, const Op& op, const WorkContext&) {
  const auto numbers = static_cast<double>(num_elements(shape(graph, op, kOf)));
  return elementwise_work(graph, op, (kFlops + (has(op, kAdded) ? 1 : 0)) * numbers);
}
/// OpDef::work of an op that only moves its operands.
inline Work work_moves(const Graph& graph, const Op& op, const WorkContext&) {
  return {.bytes = io_bytes(graph, op)};
}
/// OpDef::rows_end of an op whose input kInput states where all its rows end.
template <size_t kInput>
TensorId ends_in(const Graph&, const Op& op, size_t) {
  return op.inputs[kInput];
}

/// Copies n elements unless `to` is `from`. E is T or Wide<T>.
template <class T, class E>
void copy(const KernelCall<T>& c, E* to, const E* from, int64_t n) {
  if (to == from || n == 0) return;
  const auto width = static_cast<int64_t>(sizeof(E)) * n;
  c.k.copy_2d(to, width, from, width, width, 1, c.stream);
}

/// Sets out[0..n) to acc, or to 0 where acc is null.
template <class T, class E>
void start_from(const KernelCall<T>& c, E* out, const std::type_identity_t<E>* acc, int64_t n) {
  if (acc != nullptr) {
    copy(c, out, acc, n);
  } else {
    c.k.clear(out, static_cast<int64_t>(sizeof(E)) * n, c.stream);
  }
}

}  // namespace moe::ops
