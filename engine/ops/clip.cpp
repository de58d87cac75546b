// The gradients' norm, and their scaling by it before the updates (GradientClip).
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr int kMaxTensorsClip = 1 << 16;

std::vector<TensorSpec> infer_sum_clip(const Graph& g, const Op& op) {
  for (size_t i = 0; i < op.inputs.size(); ++i) expect_matrix(g, op, i, 1);
  return {{{kernels::kSquareSums}, wide_dtype(arg(g, op, 0).dtype)}};
}

Work work_sum(const Graph& g, const Op& op, const WorkContext&) {
  double numbers = 0;
  for (const TensorId t : op.inputs)
    numbers += static_cast<double>(num_elements(g.tensor(t).shape));
  return {.flops = 2 * numbers, .bytes = io_bytes(g, op)};
}

constexpr auto run_sum = []<class T>(const KernelCall<T>& c) {
  using W = kernels::Wide<T>;
  const auto factor = static_cast<W>(attr_double(c.op, "factor", 1));
  for (size_t i = 0; i < c.op.inputs.size(); ++i) {
    W* const sums = c.wide_out(0);
    c.k.square_sums(sums, c.wide(i), i == 0 ? nullptr : sums, factor, num_elements(c.in_shape(i)),
                    c.stream);
  }
};

std::vector<TensorSpec> infer_clip(const Graph& g, const Op& op) {
  expect_shape(g, op, 0, {kernels::kSquareSums});
  std::vector<TensorSpec> specs;
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    specs.push_back({expect_matrix(g, op, i, 1), arg(g, op, i).dtype});
  }
  return specs;
}

Work work_clip(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = io_bytes(g, op)};
}

constexpr auto run_clip = []<class T>(const KernelCall<T>& c) {
  const auto limit = static_cast<kernels::Wide<T>>(attr_double(c.op, "norm"));
  for (size_t i = 1; i < c.op.inputs.size(); ++i) {
    c.k.clip(c.wide_out(i - 1), c.wide(i), c.wide(0), limit, num_elements(c.in_shape(i)), c.stream);
  }
};

}  // namespace

const OpDef kSquareSum = {
    .name = "square_sum",
    .doc = "attr factor times the sum of the squares of all numbers, in parts",
    .bound = Bound::kBytes,
    .inputs = {several("gradients", kMaxTensorsClip)},
    .outputs = {{"sum"}},
    .infer = infer_sum_clip,
    .work = work_sum,
    .gradient = no_gradient,
    .run = wide_types(run_sum)};

const OpDef kClipGradients = {
    .name = "clip_to_norm",
    .doc = "scales gradients down where their norm, the root of square_sum, is above attr norm",
    .bound = Bound::kBytes,
    .inputs = {{"square_sum"}, several("gradients", kMaxTensorsClip)},
    .outputs = {several("clipped", kMaxTensorsClip)},
    .infer = infer_clip,
    .work = work_clip,
    .gradient = no_gradient,
    .alias_each = true,
    .run = wide_types(run_clip)};

}  // namespace moe::ops
