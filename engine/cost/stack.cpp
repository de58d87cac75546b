#include "engine/cost/stack.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "engine/base/errors.h"
#include "engine/base/limits.h"

namespace moe {
namespace {

/// Returns the op's operand of this name; an invalid id when it is absent.
TensorId operand(const OpDef& def, const Op& op, std::string_view name) {
  for (const auto& [operands, tensors] :
       {std::pair(&def.inputs, &op.inputs), std::pair(&def.outputs, &op.outputs)}) {
    for (size_t i = 0; i < std::min(operands->size(), tensors->size()); ++i) {
      if ((*operands)[i].name == name) return (*tensors)[i];
    }
  }
  return {};
}

/// Returns the share of its operands' bytes that an op of so many bytes reads or writes.
double moved_share(const Graph& graph, const Op& op, double bytes) {
  double all = 0;
  std::set<TensorId> seen;
  for (const auto* tensors : {&op.inputs, &op.outputs}) {
    for (const TensorId id : *tensors) {
      if (id.valid() && seen.insert(id).second) all += static_cast<double>(graph.bytes(id));
    }
  }
  return all > 0 ? std::min(1.0, bytes / all) : 0;
}

/// The op as a product of a mask [slots, tokens] and rows, or a transpose of that. All 0: it has no
/// masks.
struct MaskProduct {
  double mask_bytes = 0, bytes = 0, flops = 0;
};

MaskProduct mask_product(const Graph& graph, const Op& op) {
  TensorId slots = input_of(graph, op, Role::kSlots);
  if (!slots.valid()) slots = output_of(graph, op, Role::kSlots);
  if (!slots.valid() || graph.tensor(slots).stored_rows > 0) return {};
  const int64_t width = graph.tensor(slots).shape.back();
  std::vector<TensorId> all = op.inputs;
  all.insert(all.end(), op.outputs.begin(), op.outputs.end());
  const auto tokens = std::find_if(all.begin(), all.end(), [&](TensorId id) {
    return id.valid() && id != slots && graph.tensor(id).dtype != DType::kI32 &&
           graph.tensor(id).shape.back() == width;
  });
  if (tokens == all.end()) return {};
  const auto elements = [&](TensorId id) {
    return static_cast<double>(num_elements(graph.tensor(id).shape));
  };
  const double columns = static_cast<double>(width);
  const double in_slots = elements(slots) / columns * op.rows.share.value_or(1);
  const double in_tokens = elements(*tokens) / columns;
  const auto element = static_cast<double>(dtype_bytes(graph.tensor(*tokens).dtype));
  const double mask = in_slots * in_tokens * element;
  return {.mask_bytes = mask,
          .bytes = mask + (in_slots + in_tokens) * columns * element,
          .flops = 2 * in_slots * in_tokens * columns};
}

}  // namespace

Nanoseconds StackCost::routed_ns(const Graph& graph, OpId id, const RoutedWork& routed) const {
  const Nanoseconds alone = RooflineCost::routed_ns(graph, id, routed);
  const Op& op = graph.op(id);
  const OpDef& def = graph.def(id);
  if (def.lane != LaneKind::kCompute || is_view(graph, op)) return alone;
  const Device& device = network()->device;
  double kernels = 1, moved = 0, least = 0;
  const auto found = stack_.ops.find(def.name);
  if (found != stack_.ops.end()) {
    const double share = moved_share(graph, op, def.work(graph, op, routed.work).bytes);
    for (const FurtherKernels& further : found->second) {
      if (!further.with.empty() && !operand(def, op, further.with).valid()) continue;
      double bytes = 0;
      if (further.of == FurtherKernels::kMasks) {
        const MaskProduct product = mask_product(graph, op);
        if (product.flops == 0) continue;
        bytes = product.mask_bytes;
        least = std::max(product.flops / device.gemm_flops_per_s,
                         product.bytes / device.memory_bytes_per_s);
      } else if (const TensorId of = operand(def, op, further.of); of.valid()) {
        bytes = share * static_cast<double>(graph.bytes(of));
      } else {
        continue;
      }
      kernels += further.kernels;
      moved += further.moves * bytes;
    }
  }
  const auto ns = [&](double seconds) {
    return checked_ns(std::ceil(seconds * kNsPerSecond), [&] {
      return fmt::format("op '{}', by the stack '{}',", op.name, stack_.name);
    });
  };
  const auto further = static_cast<Nanoseconds>(kernels - 1) * device.launch_ns;
  const Nanoseconds by_device = std::max(alone, ns(least) + device.launch_ns) + further +
                                ns(moved / device.memory_bytes_per_s);
  return std::max(by_device,
                  static_cast<Nanoseconds>(kernels) * stack_.host_launch_ns + stack_.host_op_ns);
}

std::string StackCost::describe() const {
  return fmt::format("{}, stack {}", RooflineCost::describe(), stack_.name);
}

}  // namespace moe
