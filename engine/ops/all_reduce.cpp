// Sums gradients over the ranks of a group. The executor runs the op through its Communicator.
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"

namespace moe::ops {
namespace {

constexpr int kMaxTensorsAllReduce = 1 << 16;

std::vector<TensorSpec> infer_all_reduce(const Graph& g, const Op& op) {
  group_of(g, op);  // throws UserError where attrs group and stride are not valid
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (!has(op, i))
      throw user_error("op '{}' (all_reduce): input {} is absent; every gradient must be given",
                       op.name, i);
    specs.push_back({expect_matrix(g, op, i, 1), arg(g, op, i).dtype});
  }
  return specs;
}

Work work_all_reduce(const Graph& g, const Op& op, const WorkContext&) {
  double bytes = 0;
  for (const TensorId t : op.inputs) bytes += static_cast<double>(g.bytes(t));
  return {.bytes = bytes};
}

/// Returns the bytes in which several tensors are packed into one message; 0 for one tensor.
Bytes scratch_all_reduce(const Graph& g, const Op& op, Bytes elem_bytes) {
  if (op.inputs.size() < 2) return 0;
  Bytes elements = 0;
  for (const TensorId t : op.inputs) elements += num_elements(g.tensor(t).shape);
  return elements * elem_bytes;
}

}  // namespace

const OpDef kAllReduce = {
    .name = "all_reduce",
    .doc = "sums each tensor over the group's ranks, in rank order; attrs group, stride",
    .lane = LaneKind::kComm,
    .collective = Collective::kAllReduce,
    .payload = Payload::kGradients,
    .inputs = {several("gradients", kMaxTensorsAllReduce)},
    .outputs = {several("sums", kMaxTensorsAllReduce)},
    .infer = infer_all_reduce,
    .work = work_all_reduce,
    .gradient = no_gradient,
    .alias_each = true,
    .scratch_bytes = scratch_all_reduce};

}  // namespace moe::ops
