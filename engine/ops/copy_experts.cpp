// Ops that move experts between devices: copy_experts sends parameters to the shadow slots of a
// placement, return_gradients sends the copies' gradients back, sum_residents sums gradients over
// residents, migrate moves residents to another device. The executor runs all of them through its
// Communicator; which device sends what to which is in placement/expert_transfers.h.
#include <algorithm>
#include <span>

#include "engine/ops/defs.h"
#include "engine/ops/placed.h"

namespace moe::ops {
namespace {

Shape with_slots(Shape shape, int64_t slots) {
  shape[0] = slots;
  return shape;
}

/// Returns the shape of a parameter tensor in the shadow slots of a range. Throws UserError when
/// the range's share of an expert has no row of the tensor.
Shape shadow_shape(const Op& op, Shape parameter, const ShadowRange& range) {
  parameter[0] = range.last - range.first;
  parameter[1] = range.share.rows(parameter[1]);
  if (parameter[1] > 0) return parameter;
  throw user_error(
      "op '{}': attributes 'begin' and 'end' select sixteenths of an expert's rows, and one of its "
      "parameters has no row there; select more sixteenths",
      op.name);
}

std::vector<TensorSpec> infer_copy_experts(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  expect_placement(g, op, 0, bounds);
  std::vector<TensorSpec> specs;
  for (const ShadowRange& range : shadow_ranges(op)) {
    for (size_t i = 1; i < op.inputs.size(); ++i) {
      const Shape& parameter = expect_matrix(g, op, i);
      expect_shape(g, op, i, with_slots(parameter, bounds.residents));
      specs.push_back({shadow_shape(op, parameter, range), arg(g, op, i).dtype});
    }
  }
  return specs;
}

double slot_bytes(const Graph& g, std::span<const TensorId> tensors) {
  double bytes = 0;
  for (const TensorId t : tensors) {
    bytes += static_cast<double>(g.bytes(t) / g.tensor(t).shape[0]);
  }
  return bytes;
}

/// The bytes that a device is expected to get (or to return): those of one expert in each shadow
/// slot of the op that is among the first `expected` (an attr) shadow slots of the device.
Work work_shadows(const Graph& g, const Op& op, const WorkContext&) {
  const std::vector<double> bytes = bytes_moved(g, op);
  const std::vector<ShadowRange> ranges = shadow_ranges(op);
  const double expected = attr_double(op, "expected", 0);
  Work work;
  for (size_t r = 0; r < ranges.size(); ++r) {
    const auto first = static_cast<double>(ranges[r].first);
    const auto last = static_cast<double>(ranges[r].last);
    work.bytes += (std::clamp(expected, first, last) - first) * bytes[r];
  }
  return work;
}

/// For sum_residents and migrate, cost models expect that nothing moves.
Work work_residents(const Graph&, const Op&, const WorkContext&) {
  return {};
}

void gradient_copy_experts(GradContext& c, OpId) {
  const Op op = c.op();
  std::vector<TensorId> inputs = {op.inputs[0]};
  for (const TensorId shadow : op.outputs) inputs.push_back(c.grad(shadow));
  for (size_t i = 1; i < op.inputs.size(); ++i) inputs.push_back(c.grad(op.inputs[i]));
  for (const TensorId t : inputs) {
    if (t.valid()) continue;
    throw user_error(
        "op '{}' (copy_experts): the loss must depend on all of its shadows and parameters",
        op.name);
  }
  const OpId back = c.emit("return_gradients", "dw", inputs, all_attrs(op));
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    c.set(op.inputs[i], c.graph().out(back, i - 1));
  }
}

/// Returns the number of parameter tensors of a return_gradients. Its inputs are the placement, for
/// each range the shadow gradient of each parameter, then the gradient of each parameter.
size_t num_parameters(const Op& op) {
  return (op.inputs.size() - 1) / (shadow_ranges(op).size() + 1);
}

std::vector<TensorSpec> infer_back_copy_experts(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  expect_placement(g, op, 0, bounds);
  const std::vector<ShadowRange> ranges = shadow_ranges(op);
  const size_t n = num_parameters(op), first = 1 + n * ranges.size();
  if (n == 0 || first + n != op.inputs.size()) {
    throw user_error(
        "op '{}' (return_gradients): it has {} inputs, expected the placement, for each range of "
        "shadow slots one gradient of a shadow per parameter, then the gradient of each parameter",
        op.name, op.inputs.size());
  }
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < n; ++i) {
    const Shape& parameter = expect_matrix(g, op, first + i);
    expect_shape(g, op, first + i, with_slots(parameter, bounds.residents));
    for (size_t r = 0; r < ranges.size(); ++r) {
      expect_shape(g, op, 1 + r * n + i, shadow_shape(op, parameter, ranges[r]));
    }
    specs.push_back({parameter, arg(g, op, first + i).dtype});
  }
  return specs;
}

/// Room for the sums of the gradients of this device's shadows plus the gradients that arrive in
/// one step of the exchange. An owner receives at most those of all its experts per range. For each
/// of its shadows, a device receives less than one expert's where every node has one device,
/// otherwise less than two experts'. Rounding parts up adds a little.
Bytes scratch_back(const Graph& g, const Op& op, Bytes elem_bytes) {
  const auto ranges = static_cast<int64_t>(shadow_ranges(op).size());
  const int64_t times = attr_int(op, "devices_per_node", 1) > 1 ? 2 : 1;
  const int64_t devices = bounds_of(op).devices;
  const size_t first = op.inputs.size() - num_parameters(op);
  int64_t sums = 0, at_shadows = 0, at_owners = 0;
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    const int64_t n = num_elements(shape(g, op, i)), rounding = shape(g, op, i)[0] * devices;
    if (i < first) {
      sums += n;
      at_shadows += times * n + rounding;
    } else {
      at_owners += ranges * (n + rounding);
    }
  }
  return (sums + std::max(at_shadows, at_owners)) * elem_bytes;
}

std::vector<TensorSpec> infer_sum_copy_experts(const Graph& g, const Op& op) {
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

/// Room for what arrives: from each other resident of an expert, one part (rounded up) of the
/// expert's gradients.
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

/// Room for what this device sends: it is packed before anything arrives.
Bytes scratch_migrate(const Graph& g, const Op& op, Bytes elem_bytes) {
  int64_t elements = 0;
  for (size_t i = 2; i < op.inputs.size(); ++i) elements += num_elements(shape(g, op, i));
  return elements * elem_bytes;
}

constexpr int kMaxTensorsCopyExperts = 64;

/// OpDef::host_inputs: the placement is input 0.
std::vector<size_t> first_input(const Op&) {
  return {0};
}

}  // namespace

std::vector<ShadowRange> shadow_ranges(const Op& op) {
  constexpr int64_t kWhole = ExpertShare::kWhole;
  const int64_t shadows = bounds_of(op).shadows;
  const int64_t first = expect_attr(op, "first", 0), last = expect_attr(op, "last", 1);
  if (first >= last || last > shadows) {
    throw user_error(
        "op '{}': attributes 'first' = {} and 'last' = {}, allowed: 0 <= first < last <= {}, the "
        "shadow slots of a device",
        op.name, first, last, shadows);
  }
  const int64_t begin = attr_int(op, "begin", 0), end = attr_int(op, "end", kWhole);
  const bool one = last - first == 1;
  if (begin < 0 || begin >= kWhole || end < 1 || end > kWhole || (one && begin >= end) ||
      (!one && begin > 0 && end < kWhole)) {
    throw user_error(
        "op '{}': attributes 'begin' = {} and 'end' = {} with 'first' = {} and 'last' = {}, "
        "allowed: 0 <= begin < 16 and 1 <= end <= 16; if last = first + 1 also begin < end, else "
        "also begin = 0 or end = 16",
        op.name, begin, end, first, last);
  }
  if (one) return {{first, last, {begin, end}}};
  if (begin > 0) return {{first, first + 1, {begin, kWhole}}, {first + 1, last}};
  if (end < kWhole) return {{first, last - 1}, {last - 1, last, {0, end}}};
  return {{first, last}};
}

std::vector<double> bytes_moved(const Graph& g, const Op& op) {
  const std::span<const TensorId> in = op.inputs, out = op.outputs;
  const std::string_view kind = g.def(op).name;
  if (kind == "sum_residents" || kind == "migrate") {
    return {slot_bytes(g, in.subspan(kind == "migrate" ? 2 : 1))};
  }
  const bool copies = kind == "copy_experts";
  const std::span<const TensorId> shadows = copies ? out : in.subspan(1);
  const size_t n = copies ? in.size() - 1 : num_parameters(op);
  std::vector<double> bytes;
  for (size_t r = 0; r < shadow_ranges(op).size(); ++r) {
    bytes.push_back(slot_bytes(g, shadows.subspan(r * n, n)));
  }
  return bytes;
}

const OpDef kCopyExperts = {
    .name = "copy_experts",
    .doc =
        "copies parameters of experts to shadow slots first..last-1 of the devices that a "
        "placement names (Pro-Prophet's Trans); attr begin: sixteenth of the first slot's expert "
        "at which the copy begins; attr end: sixteenth of the last one's at which it ends",
    .lane = LaneKind::kComm,
    .collective = Collective::kExperts,
    .payload = Payload::kShadows,
    .inputs = {{"placement", Role::kPlacement}, several("experts", kMaxTensorsCopyExperts)},
    .outputs = {several("shadows", 2 * kMaxTensorsCopyExperts)},
    .infer = infer_copy_experts,
    .work = work_shadows,
    .gradient = gradient_copy_experts,
    .loose_slots = true,
    .host_inputs = first_input};

const OpDef kReturnGradients = {
    .name = "return_gradients",
    .doc =
        "sends the gradients of shadows to the experts' owners and sums them there (Pro-Prophet's "
        "Agg)",
    .lane = LaneKind::kComm,
    .collective = Collective::kExperts,
    .payload = Payload::kShadowGradients,
    .inputs = {{"placement", Role::kPlacement}, several("gradients", 2 * kMaxTensorsCopyExperts)},
    .outputs = {several("sums", kMaxTensorsCopyExperts)},
    .infer = infer_back_copy_experts,
    .work = work_shadows,
    .gradient = no_gradient,
    .loose_slots = true,
    .scratch_bytes = scratch_back,
    .host_inputs = first_input};

const OpDef kSumResidents = {
    .name = "sum_residents",
    .doc = "sums the gradients of each expert over the devices where it is resident",
    .lane = LaneKind::kComm,
    .collective = Collective::kExperts,
    .payload = Payload::kResidentGradients,
    .inputs = {{"placement", Role::kPlacement}, several("gradients", kMaxTensorsCopyExperts)},
    .outputs = {several("sums", kMaxTensorsCopyExperts)},
    .infer = infer_sum_copy_experts,
    .work = work_residents,
    .gradient = no_gradient,
    .alias_each = true,
    .loose_slots = true,
    .scratch_bytes = scratch_sum,
    .host_inputs = first_input};

const OpDef kMigrate = {
    .name = "migrate",
    .doc = "moves parameters and optimizer state of residents to the devices of the next placement",
    .lane = LaneKind::kComm,
    .collective = Collective::kExperts,
    .payload = Payload::kResidents,
    .inputs = {{"placement", Role::kPlacement},
               {"next", Role::kNextPlacement},
               several("experts", kMaxTensorsCopyExperts)},
    .infer = infer_migrate,
    .work = work_residents,
    .gradient = no_gradient,
    .mutates_from = 2,
    .loose_slots = true,
    .scratch_bytes = scratch_migrate,
    .host_inputs = [](const Op&) {
      return std::vector<size_t>{0, 1};
    }};

}  // namespace moe::ops
