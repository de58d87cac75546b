// What the op files share: reading arguments, checking shapes, counting bytes, and the two smallest
// pieces of glue.
#pragma once

#include <type_traits>

#include "engine/base/errors.h"
#include "engine/graph/autodiff.h"
#include "engine/graph/op_def.h"
#include "engine/ops/kernel_call.h"
#include "engine/ops/ops.h"

namespace moe::ops {

/// Any length, in expect_shape.
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
/// Input i of an op, invalid when absent.
inline TensorId input_or_none(const Op& op, size_t i) {
  return i < op.inputs.size() ? op.inputs[i] : TensorId();
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
/// The same for an i32 tensor.
void expect_index(const Graph& graph, const Op& op, size_t i, const Shape& allowed);
/// Input i is a floating-point tensor with this many rows (all axes but the last) and columns.
void expect_rows(const Graph& graph, const Op& op, size_t i, int64_t rows, int64_t cols);
/// Input i has at least one axis, and all are positive; returns its shape.
const Shape& expect_matrix(const Graph& graph, const Op& op, size_t i, size_t min_rank = 2);
/// The integer attribute, which must be at least `least`.
int64_t expect_attr(const Op& op, std::string_view key, int64_t least);

/// Attr scores, softmax unless given. Throws UserError for anything else.
kernels::ScoreRule score_rule(const Op& op);
/// Attr weight, prob unless given. Throws UserError for anything else.
kernels::WeightRule weight_rule(const Op& op);

/// [rows / seq, seq, cols] where attr seq says how rows are arranged, else [rows, cols].
Shape token_shape(const Op& op, int64_t rows, int64_t cols);
/// The attribute that gives a gradient of this shape its arrangement back.
Attrs seq_attr(const Shape& shape);

/// Statistics of reduced precision are kept in f32.
inline DType stats_dtype(DType dtype) {
  return dtype == DType::kF16 ? DType::kF32 : wide_dtype(dtype);
}
/// The type of an activation that an op makes of wide ones alone: attr store, `default_value`
/// unless given. Throws UserError for anything but bf16.
DType stored_dtype(const Op& op, DType default_value);

/// The op is one part of a cut along rows: it touches the rows of its own part only, which are attr
/// share of the whole batch's (expected).
inline bool is_part(const Op& op) {
  return op.attrs.contains("share");
}
inline double share_of(const Op& op) {
  return attr_double(op, "share", 1.0);
}

/// Of rows in the slots of a placed layer: the part of the slots that experts are expected in.
inline double slot_ratio_of(const Op& op) {
  return attr_double(op, "occupancy", 1.0);
}

/// Bytes of the op's inputs and outputs, each counted once.
double io_bytes(const Graph& graph, const Op& op);
inline Work elementwise_work(const Graph& graph, const Op& op, double flops) {
  return {.flops = flops, .bytes = io_bytes(graph, op)};
}

/// E: T or Wide<T>.
template <class T, class E>
void copy(const KernelCall<T>& c, E* to, const E* from, int64_t n) {
  if (to == from || n == 0) return;
  const auto width = static_cast<int64_t>(sizeof(E)) * n;
  c.k.copy_2d(to, width, from, width, width, 1, c.stream);
}

/// out[n] starts as acc, or as 0.
template <class T, class E>
void start_from(const KernelCall<T>& c, E* out, const std::type_identity_t<E>* acc, int64_t n) {
  if (acc != nullptr) {
    copy(c, out, acc, n);
  } else {
    c.k.clear(out, static_cast<int64_t>(sizeof(E)) * n, c.stream);
  }
}

}  // namespace moe::ops
