// Computes the loss and the gradient of the logits in one op, so the logits need not be kept. The
// op cannot be cut into parts: the loss is one sum, and no op adds up the losses of parts.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
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

void gradient(GradContext& c, OpId) {
  const Op op = c.op();
  if (c.needs(op.inputs[0])) c.add(op.inputs[0], op.outputs[1]);
}

constexpr auto run = []<class T>(const KernelCall<T>& c) {
  const Shape& logits = c.in_shape(0);
  const int64_t pitch = cols_of(logits);
  copy(c, c.out(1), c.in(0), num_elements(logits));
  c.k.cross_entropy(reinterpret_cast<double*>(c.out(0)), c.out(1), c.in_i32(1),
                    attr_double(c.op, "scale", 1.0), true, rows_of(logits),
                    attr_int(c.op, "cols", pitch), pitch, c.stream);
};

}  // namespace

const OpDef kCrossEntropy = {
    .name = "cross_entropy",
    .doc =
        "loss = attr scale * sum of -log softmax(logits)[target], and its gradient dlogits; with "
        "attr cols only of the first cols columns, and the gradient of the others is 0",
    .inputs = {{"logits", Role::kScores}, {"targets", Role::kIds}},
    .outputs = {{"loss"}, {"dlogits"}},
    .infer = infer,
    .work = work_each<6>,
    .gradient = gradient,
    .loss = Loss::kModel,
    .may_alias = {{1, 0}},
    .run = any_type(run)};

}  // namespace moe::ops
