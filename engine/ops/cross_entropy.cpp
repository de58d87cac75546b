// Computes the loss and the gradient of the logits in one op, so the logits need not be kept. The
// op cannot be cut into parts: the loss is one sum, and no op adds up the losses of parts. Where
// ranks have a part of the vocabulary each, vocabulary_sums gives what a row of the loss needs of
// each part (Shoeybi et al. 2019, arXiv 1909.08053, section 3), and cross_entropy_split computes
// the loss from those of all parts. These two are computed on the CPU. A row without a target has
// no loss: its target is negative, and -2 or less in cross_entropy_split, where -1 is a token of
// another part. The losses of MTP layers are the same under other names.
#include <cmath>

#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer_cross_entropy(const Graph& g, const Op& op) {
  const Shape& logits = expect_matrix(g, op, 0);
  const Tensor& targets = arg(g, op, 1);
  if (targets.dtype != DType::kI32 || num_elements(targets.shape) != rows_of(logits)) {
    throw user_error(
        "op '{}' (cross_entropy): input 1 '{}' is {} {}, expected i32 targets of {} rows", op.name,
        targets.name, name_of(targets.dtype), shape_text(targets.shape), rows_of(logits));
  }
  expect_cols(g, op, cols_of(logits));
  return {{{1}, DType::kF64}, {logits, arg(g, op, 0).dtype}};
}

void gradient_cross_entropy(GradContext& c, OpId) {
  const Op op = c.op();
  if (c.needs(op.inputs[0])) c.add(op.inputs[0], op.outputs[1]);
}

constexpr auto run_cross_entropy = []<class T>(const KernelCall<T>& c) {
  const Shape& logits = c.in_shape(0);
  const int64_t pitch = cols_of(logits);
  copy(c, c.out(1), c.in(0), num_elements(logits));
  c.k.cross_entropy(reinterpret_cast<double*>(c.out(0)), c.out(1), c.in_i32(1),
                    attr_double(c.op, "scale", 1.0), true, rows_of(logits),
                    attr_int(c.op, "cols", pitch), pitch, c.stream);
};

/// Throws UserError unless targets, input 1, are i32 of as many rows as the logits.
void expect_targets(const Graph& g, const Op& op) {
  const Shape& logits = expect_matrix(g, op, 0);
  expect_index(g, op, 1, Shape(logits.begin(), logits.end() - 1));
}

std::vector<TensorSpec> infer_sums(const Graph& g, const Op& op) {
  expect_targets(g, op);
  Shape sums = shape(g, op, 0);
  sums.back() = 2;
  return {{sums, stats_dtype(arg(g, op, 0).dtype)}};
}

constexpr auto run_sums = []<class T>(const KernelCall<T>& c) {
  const int64_t rows = rows_of(c.in_shape(0)), cols = cols_of(c.in_shape(0));
  for (int64_t r = 0; r < rows; ++r) {
    const T* const x = c.in(0) + r * cols;
    double most = static_cast<double>(x[0]), sum = 0;
    for (int64_t i = 1; i < cols; ++i) most = std::max(most, static_cast<double>(x[i]));
    for (int64_t i = 0; i < cols; ++i) sum += std::exp(static_cast<double>(x[i]) - most);
    const int32_t target = c.in_i32(1)[r];
    using W = kernels::Wide<T>;
    c.wide_out(0)[2 * r] = static_cast<W>(most + std::log(sum));
    c.wide_out(0)[2 * r + 1] = target < 0 ? W(0) : static_cast<W>(x[target]);
  }
};

std::vector<TensorSpec> infer_split_cross_entropy(const Graph& g, const Op& op) {
  expect_targets(g, op);
  Shape sums = shape(g, op, 0);
  sums.back() = 2 * expect_attr(op, "copies", 1);
  expect_shape(g, op, 2, sums);
  return {{{1}, DType::kF64}, {shape(g, op, 0), arg(g, op, 0).dtype}};
}

constexpr auto run_split_cross_entropy = []<class T>(const KernelCall<T>& c) {
  const int64_t rows = rows_of(c.in_shape(0)), cols = cols_of(c.in_shape(0));
  const int64_t parts = attr_int(c.op, "copies");
  const double scale = attr_double(c.op, "scale", 1.0);
  double loss = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const auto* const sums = c.wide(2) + 2 * parts * r;
    double most = static_cast<double>(sums[0]), sum = 0, target = 0;
    for (int64_t p = 1; p < parts; ++p) most = std::max(most, static_cast<double>(sums[2 * p]));
    for (int64_t p = 0; p < parts; ++p) {
      sum += std::exp(static_cast<double>(sums[2 * p]) - most);
      target += static_cast<double>(sums[2 * p + 1]);
    }
    const double all = most + std::log(sum);
    const int32_t own = c.in_i32(1)[r];
    if (own >= -1) loss += all - target;
    const T* const x = c.in(0) + r * cols;
    T* const dx = c.out(1) + r * cols;
    for (int64_t i = 0; i < cols; ++i) {
      const double p = own < -1 ? 0 : std::exp(static_cast<double>(x[i]) - all);
      dx[i] = static_cast<T>(scale * (i == own ? p - 1 : p));
    }
  }
  *reinterpret_cast<double*>(c.out(0)) = scale * loss / static_cast<double>(parts);
};

/// Returns `def` as the loss of MTP layer number attr depth, from 1.
OpDef of_mtp_layer(OpDef def, const char* name, const char* doc) {
  def.name = name;
  def.doc = doc;
  def.loss = Loss::kMtp;
  return def;
}

}  // namespace

const OpDef kVocabularySums = {
    .name = "vocabulary_sums",
    .doc =
        "of each row of a part of the logits: log of the sum of their exponentials, and the logit "
        "of the target, 0 where the target is -1, in another part",
    .inputs = {{"logits", Role::kScores}, {"targets", Role::kIds}},
    .outputs = {{"sums"}},
    .infer = infer_sums,
    .work = work_each<4>,
    .gradient = no_gradient,
    .run = wide_types(run_sums),
    .on_host = always};

const OpDef kCrossEntropySplit = {
    .name = "cross_entropy_split",
    .doc =
        "loss = attr scale / copies * sum of -log softmax of the targets, from the sums of the "
        "attr copies parts of the logits, and the gradient of this part, dlogits, of the sum of "
        "all copies' losses",
    .inputs = {{"logits", Role::kScores}, {"targets", Role::kIds}, {"sums"}},
    .outputs = {{"loss"}, {"dlogits"}},
    .infer = infer_split_cross_entropy,
    .work = work_each<4>,
    .gradient = gradient_cross_entropy,
    .loss = Loss::kModel,
    .may_alias = {{1, 0}},
    .run = wide_types(run_split_cross_entropy),
    .on_host = always};

const OpDef kCrossEntropy = {
    .name = "cross_entropy",
    .doc =
        "loss = attr scale * sum of -log softmax(logits)[target] over rows with a target of 0 or "
        "more, and its gradient dlogits; with attr cols only of the first cols columns, and the "
        "gradient of the others is 0",
    .inputs = {{"logits", Role::kScores}, {"targets", Role::kIds}},
    .outputs = {{"loss"}, {"dlogits"}},
    .infer = infer_cross_entropy,
    .work = work_each<6>,
    .gradient = gradient_cross_entropy,
    .loss = Loss::kModel,
    .may_alias = {{1, 0}},
    .run = any_type(run_cross_entropy)};

const OpDef kMtpLoss =
    of_mtp_layer(kCrossEntropy, "mtp_loss", "cross_entropy of MTP layer number attr depth");

const OpDef kMtpLossSplit = of_mtp_layer(kCrossEntropySplit, "mtp_loss_split",
                                         "cross_entropy_split of MTP layer number attr depth");

}  // namespace moe::ops
