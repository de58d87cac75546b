// The parameters of experts into the shadow slots of a placement, and their gradients back; the sum
// of gradients over residents; residents from one device to another. The executor runs all of them
// through its Communicator; who sends what to whom is placement/transfers.h.
#include <algorithm>

#include "engine/ops/defs.h"
#include "engine/ops/placed.h"

namespace moe::ops {
namespace {

/// Slots that this very op fills, of the placement's shadows.
struct ShadowRange {
  int64_t first, last;
  int64_t size() const { return last - first; }
};

ShadowRange range_of(const Op& op, const PlacementBounds& bounds) {
  const ShadowRange range = {expect_attr(op, "first", 0), expect_attr(op, "last", 1)};
  if (range.first >= range.last || range.last > bounds.shadows) {
    throw user_error("op '{}': shadow slots {} to {}, allowed: some of 0 to {}", op.name,
                     range.first, range.last, bounds.shadows);
  }
  return range;
}

Shape with_slots(Shape shape, int64_t slots) {
  shape[0] = slots;
  return shape;
}

std::vector<TensorSpec> infer(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  expect_placement(g, op, 0, bounds);
  const ShadowRange range = range_of(op, bounds);
  std::vector<TensorSpec> specs;
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    const Shape& parameter = expect_matrix(g, op, i);
    expect_shape(g, op, i, with_slots(parameter, bounds.residents));
    specs.push_back({with_slots(parameter, range.size()), arg(g, op, i).dtype});
  }
  return specs;
}

/// Expected: attr expected copies a device receive, of the experts in these tensors.
double expected_bytes(const Graph& g, const Op& op, size_t first, size_t last) {
  double bytes = 0;
  for (size_t i = first; i < last; ++i) {
    bytes += static_cast<double>(g.bytes(op.inputs[i]) / shape(g, op, i)[0]);
  }
  return bytes * attr_double(op, "expected", 0);
}

Work work(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = expected_bytes(g, op, 1, op.inputs.size())};
}

void gradient(GradContext& c, OpId) {
  const Op op = c.op();
  std::vector<TensorId> inputs = {op.inputs[0]};
  for (const TensorId shadow : op.outputs) inputs.push_back(c.grad(shadow));
  for (size_t i = 1; i < op.inputs.size(); ++i) inputs.push_back(c.grad(op.inputs[i]));
  for (const TensorId t : inputs) {
    if (t.valid()) continue;
    throw user_error("op '{}': no gradient arrives at all of its shadows and parameters", op.name);
  }
  const OpId back = c.emit("return_gradients", "dw", inputs, op.attrs);
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    c.set(op.inputs[i], c.graph().out(back, i - 1));
  }
}

std::vector<TensorSpec> infer_back(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  expect_placement(g, op, 0, bounds);
  const ShadowRange range = range_of(op, bounds);
  if (op.inputs.size() % 2 == 0) {
    throw user_error("op '{}': as many shadows as parameters are expected", op.name);
  }
  const size_t n = op.inputs.size() / 2;
  std::vector<TensorSpec> specs;
  for (size_t i = 1; i <= n; ++i) {
    const Shape& parameter = expect_matrix(g, op, n + i);
    expect_shape(g, op, n + i, with_slots(parameter, bounds.residents));
    expect_shape(g, op, i, with_slots(parameter, range.size()));
    specs.push_back({parameter, arg(g, op, n + i).dtype});
  }
  return specs;
}

Work work_back(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = expected_bytes(g, op, 1, op.inputs.size() / 2 + 1)};
}

/// The sums of one's own shadows, and what arrives in one step: at an owner the experts whole; at
/// a shadow less than its expert once where every node has one device, less than twice otherwise,
/// and what rounding parts up adds.
Bytes scratch_back(const Graph& g, const Op& op, Bytes elem_bytes) {
  const size_t n = op.inputs.size() / 2;
  const int64_t times = attr_int(op, "devices_per_node", 1) > 1 ? 2 : 1;
  int64_t elements = 0;
  for (size_t i = 1; i <= n; ++i) {
    const int64_t shadows = num_elements(shape(g, op, i));
    const int64_t rounding = shape(g, op, i)[0] * bounds_of(op).devices;
    elements += shadows + std::max(times * shadows + rounding, num_elements(shape(g, op, n + i)));
  }
  return elements * elem_bytes;
}

std::vector<TensorSpec> infer_sum(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  expect_placement(g, op, 0, bounds);
  std::vector<TensorSpec> specs;
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    const Shape& x = expect_matrix(g, op, i);
    expect_shape(g, op, i, with_slots(x, bounds.residents));
    specs.push_back({x, arg(g, op, i).dtype});
  }
  return specs;
}

/// What arrives: a part of each resident from each other one, rounded up.
Bytes scratch_sum(const Graph& g, const Op& op, Bytes elem_bytes) {
  int64_t elements = 0;
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    elements += num_elements(shape(g, op, i)) + shape(g, op, i)[0] * bounds_of(op).devices;
  }
  return elements * elem_bytes;
}

std::vector<TensorSpec> infer_migrate(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  expect_placement(g, op, 0, bounds);
  expect_placement(g, op, 1, bounds);
  for (size_t i = 2; i < op.inputs.size(); ++i) {
    expect_shape(g, op, i, with_slots(expect_matrix(g, op, i), bounds.residents));
  }
  return {};
}

Work work_migrate(const Graph& g, const Op& op, const WorkContext&) {
  return {.bytes = expected_bytes(g, op, 2, op.inputs.size())};
}

/// What leaves is packed before anything arrives.
Bytes scratch_migrate(const Graph& g, const Op& op, Bytes elem_bytes) {
  int64_t elements = 0;
  for (size_t i = 2; i < op.inputs.size(); ++i) elements += num_elements(shape(g, op, i));
  return elements * elem_bytes;
}

constexpr int kMaxTensors = 64;

}  // namespace

const OpDef kCopyExperts = {
    .name = "copy_experts",
    .doc =
        "parameters of experts into shadow slots first..last-1 of the devices that a placement "
        "names (Pro-Prophet's Trans)",
    .lane = LaneKind::kComm,
    .collective = Collective::kExperts,
    .min_inputs = 2,
    .max_inputs = kMaxTensors,
    .infer = infer,
    .work = work,
    .gradient = gradient};

const OpDef kReturnGradients = {
    .name = "return_gradients",
    .doc = "gradients of shadows summed to the owners' (Pro-Prophet's Agg)",
    .lane = LaneKind::kComm,
    .collective = Collective::kExperts,
    .min_inputs = 3,
    .max_inputs = 2 * kMaxTensors,
    .infer = infer_back,
    .work = work_back,
    .scratch_bytes = scratch_back};

const OpDef kSumResidents = {
    .name = "sum_residents",
    .doc = "gradients of an expert summed over the devices where it is resident",
    .lane = LaneKind::kComm,
    .collective = Collective::kExperts,
    .min_inputs = 2,
    .max_inputs = kMaxTensors,
    .infer = infer_sum,
    .work = work,
    .scratch_bytes = scratch_sum};

const OpDef kMigrate = {
    .name = "migrate",
    .doc = "parameters and optimiser state of residents to where the next placement has them",
    .lane = LaneKind::kComm,
    .collective = Collective::kExperts,
    .min_inputs = 3,
    .max_inputs = kMaxTensors,
    .infer = infer_migrate,
    .work = work_migrate,
    .mutates_from = 2,
    .scratch_bytes = scratch_migrate};

}  // namespace moe::ops
