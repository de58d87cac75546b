#include "engine/exec/device/ops.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/exec/buffers.h"
#include "engine/exec/finite.h"
#include "engine/graph/op_def.h"
#include "engine/ops/attention_shape.h"
#include "engine/ops/rules.h"
#include "engine/ops/swap_in.h"
#include "engine/routing/gate.h"

namespace moe {
namespace {

constexpr int64_t kMaxRoutedExperts = 1024;  // the most experts that the device's routing supports

/// Whether the op uses the kernels that store bf16.
bool mixed(const Graph& graph, const Op& op, const kernels::DeviceTable& device) {
  return device.mixed != nullptr && stores_bf16(graph, op);
}

kernels::EitherIn as_stored(const Tensor& tensor, const void* data,
                            const kernels::DeviceTable& device) {
  if (device.mixed != nullptr && tensor.dtype == DType::kBF16)
    return static_cast<const kernels::Bf16*>(data);
  return static_cast<const float*>(data);
}

int64_t attention_scratch(const Graph& graph, const Op& op, const kernels::DeviceTable& device) {
  const auto bytes = mixed(graph, op, device) ? device.mixed->attention_work_bytes
                                              : device.kernels->attention_work_bytes;
  const auto query = place_of(graph.def(op).inputs, Role::kQuery);
  return query ? bytes(ops::attend_shape(graph, op, *query)) : 0;
}

void route(const Graph& graph, const Op& op, const DeviceOperands& operands,
           const kernels::DeviceTable& device, kernels::Stream stream) {
  const Shape& logits = graph.tensor(op.inputs[0]).shape;
  const OpDef& def = graph.def(op);
  const auto out = [&](Role role) { return operands.outputs[place_of(def.outputs, role).value()]; };
  const auto floats = [&](Role role) { return static_cast<float*>(out(role)); };
  const auto i32 = [&](Role role) { return static_cast<int32_t*>(out(role)); };
  const size_t before = place_of(def.inputs, Role::kUsedBefore).value();
  const void* const used = op.inputs.size() > before ? operands.inputs[before] : nullptr;
  device.route_top_k({.tokens = logits[0],
                      .experts = logits[1],
                      .k = graph.tensor(output_of(graph, op, Role::kExpert)).shape[1],
                      .capacity = graph.tensor(output_of(graph, op, Role::kSlotChoice)).shape[1],
                      .logits = static_cast<const float*>(operands.inputs[0]),
                      .scores = floats(Role::kProbs),
                      .used_before = static_cast<const int32_t*>(used),
                      .expert = i32(Role::kExpert),
                      .choice_slot = i32(Role::kChoiceSlot),
                      .slot_choice = i32(Role::kSlotChoice),
                      .counts = i32(Role::kCounts),
                      .weight = floats(Role::kWeight),
                      .rule = ops::weight_rule(op),
                      .score = ops::score_rule(op),
                      .first_token = attr_int(op, "first_token", 0),
                      .part = ops::is_part(op),
                      .work = operands.scratch},
                     stream);
}

}  // namespace

Bytes element_bytes(const kernels::DeviceTable& device) {
  return device.mixed != nullptr ? 0 : Bytes{sizeof(float)};
}

kernels::DeviceTable computing_in(bool bf16, kernels::DeviceTable device) {
  if (!bf16) {
    device.mixed = nullptr;
  } else if (device.mixed == nullptr) {
    throw user_error(
        "precision: bf16 is not possible, because this device has no kernels for bfloat16; use "
        "f32");
  }
  return device;
}

bool is_gate(const Graph& graph, OpId op) {
  return graph.def(op).moe == MoeOp::kGate;
}

bool routes_on_device(const Graph& graph, OpId id) {
  if (!is_gate(graph, id)) return false;
  const Op& op = graph.op(id);
  const std::vector<Gate>& gates = builtin_gates();
  const bool best = std::any_of(gates.begin(), gates.end(), [&](const Gate& gate) {
    return gate.fills_best && gate.name == attr_string(op, "gate");
  });
  const int64_t experts = graph.tensor(op.inputs[0]).shape[1];
  const bool plain = !input_of(graph, op, Role::kBias).valid() && !op.attrs.contains("scale") &&
                     !op.attrs.contains("groups");
  return best && plain && experts <= kMaxRoutedExperts;
}

std::vector<TensorId> checked_on_device(const Graph& graph, const Op& op) {
  std::vector<TensorId> tensors = finite_operands(graph, op);
  std::erase_if(tensors, [&](TensorId t) { return graph.tensor(t).dtype == DType::kF64; });
  return tensors;
}

void queue_check(const Tensor& tensor, const void* data, int64_t* first,
                 const kernels::DeviceTable& device, kernels::Stream stream) {
  device.note_nonfinite(first, as_stored(tensor, data, device), num_elements(tensor.shape), stream);
}

void queue_predictions(const Graph& graph, const Op& loss, const void* data, int32_t* tokens,
                       const kernels::DeviceTable& device, kernels::Stream stream) {
  const Tensor& logits = graph.tensor(loss.inputs[0]);
  const int64_t pitch = logits.shape.back();
  device.largest_columns(tokens, as_stored(logits, data, device),
                         num_elements(logits.shape) / pitch, attr_int(loss, "cols", pitch), pitch,
                         stream);
}

bool has_kernel(const Graph& graph, OpId id, const kernels::DeviceTable& device) {
  const OpDef& def = graph.def(id);
  return mixed(graph, graph.op(id), device) ? def.run.bf16 != nullptr : def.run.f32 != nullptr;
}

Bytes device_scratch_bytes(const Graph& graph, OpId id, const kernels::DeviceTable& device) {
  const Op& op = graph.op(id);
  const auto of_glue = graph.def(op).scratch_bytes;
  Bytes bytes = of_glue == nullptr ? 0 : of_glue(graph, op, sizeof(float));
  bytes = std::max(bytes, attention_scratch(graph, op, device));
  if (!is_gate(graph, id)) return bytes;
  const Shape& choices = graph.tensor(output_of(graph, op, Role::kExpert)).shape;
  const int64_t experts = graph.tensor(output_of(graph, op, Role::kCounts)).shape[0];
  return std::max(bytes, device.top_k_work_bytes(choices[0], experts, choices[1]));
}

void queue_op(const Graph& graph, OpId id, const DeviceOperands& operands,
              const RankContext& context, const kernels::DeviceTable& device,
              kernels::Stream stream) {
  const Op& op = graph.op(id);
  if (is_gate(graph, id)) return route(graph, op, operands, device, stream);
  if (ops::is_swap_in(graph, id)) {
    for (const kernels::Copy& one : ops::swap_in_copies(
             graph, op, operands.inputs, operands.outputs, context.rank, Bytes{sizeof(float)})) {
      device.copy(one.to, one.from, one.bytes, stream);
    }
    return;
  }
  const auto call = [&]<class T>(const kernels::KernelTable<T>& k) {
    return KernelCall<T>{graph, op,      operands.inputs, operands.outputs, operands.scratch,
                         k,     context, stream};
  };
  if (mixed(graph, op, device)) {
    graph.def(id).run.bf16(call(*device.mixed));
  } else {
    graph.def(id).run.f32(call(*device.kernels));
  }
}

}  // namespace moe
