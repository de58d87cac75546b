// The two halves of an all-reduce, with which ZeRO shards optimizer states (slices.h):
// reduce_scatter gives each rank its slices of the gradients' sums, all_gather brings the slices of
// the parameters that the ranks have updated to all. The executor runs both through its
// Communicator.
#include "engine/ops/defs.h"
#include "engine/ops/slices.h"

namespace moe::ops {
namespace {

constexpr int kMaxTensorsReduceScatter = 1 << 16;

/// Throws UserError for an absent input, or if the attributes group and stride are not valid.
void check_reduce_scatter(const Graph& g, const Op& op) {
  group_of(g, op);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (!has(op, i))
      throw user_error("op '{}' ({}): input {} is absent; every tensor must be given", op.name,
                       g.def(op).name, i);
    expect_matrix(g, op, i, 1);
  }
}

std::vector<TensorSpec> infer_scatter(const Graph& g, const Op& op) {
  check_reduce_scatter(g, op);
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    specs.push_back({slice_shape(shape(g, op, i), group_of(g, op)), arg(g, op, i).dtype});
  }
  return specs;
}

std::vector<TensorSpec> infer_gather(const Graph& g, const Op& op) {
  check_reduce_scatter(g, op);
  return {};
}

/// Returns the elements of the message: all ranks' slices of all tensors.
int64_t sent(const Graph& g, const Op& op) {
  const Group group = group_of(g, op);
  int64_t elements = 0;
  for (const TensorId t : op.inputs) {
    elements += group.size * group.slice_length(num_elements(g.tensor(t).shape));
  }
  return elements;
}

Work work_reduce_scatter(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = static_cast<double>(sent(g, op) * dtype_bytes(arg(g, op, 0).dtype))};
}

Bytes scratch_reduce_scatter(const Graph& g, const Op& op, Bytes elem_bytes) {
  return sent(g, op) * elem_bytes;
}

}  // namespace

const OpDef kReduceScatter = {
    .name = "reduce_scatter",
    .doc =
        "sums each tensor over the group's ranks, in rank order, and gives each rank its flat "
        "slice of the sum; attrs group, stride",
    .lane = LaneKind::kComm,
    .collective = Collective::kReduceScatter,
    .payload = Payload::kGradients,
    .inputs = {several("gradients", kMaxTensorsReduceScatter)},
    .outputs = {several("slices", kMaxTensorsReduceScatter)},
    .infer = infer_scatter,
    .work = work_reduce_scatter,
    .gradient = no_gradient,
    .scratch_bytes = scratch_reduce_scatter};

const OpDef kAllGather = {
    .name = "all_gather",
    .doc =
        "copies each rank's flat slice of each tensor to the group's other ranks, in place; attrs "
        "group, stride",
    .lane = LaneKind::kComm,
    .collective = Collective::kAllGather,
    .payload = Payload::kParameters,
    .inputs = {several("parameters", kMaxTensorsReduceScatter)},
    .infer = infer_gather,
    .work = work_reduce_scatter,
    .gradient = no_gradient,
    .mutates_from = 0,
    .scratch_bytes = scratch_reduce_scatter};

}  // namespace moe::ops
