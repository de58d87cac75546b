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

StackCost::Further StackCost::further(const Graph& graph, OpId id,
                                      const WorkContext& context) const {
  const Op& op = graph.op(id);
  const OpDef& def = graph.def(id);
  Further sum;
  const auto found = stack_.ops.find(def.name);
  if (found == stack_.ops.end()) return sum;
  const Work work = def.work(graph, op, context);
  const std::string products = narrow_dtype(graph, op, work.matrix);
  const double share = moved_share(graph, op, work.bytes);
  for (const FurtherKernels& further : found->second) {
    if (!further.with.empty() && !operand(def, op, further.with).valid()) continue;
    if (!further.products.empty() && further.products != products) continue;
    double bytes = 0;
    if (further.of == FurtherKernels::kMasks) {
      const MaskProduct product = mask_product(graph, op);
      if (product.flops == 0) continue;
      bytes = product.mask_bytes;
      const Device& device = network()->device;
      sum.least = std::max(product.flops / device.gemm_flops_per_s,
                           product.bytes / device.memory_bytes_per_s);
    } else if (const TensorId of = operand(def, op, further.of); of.valid()) {
      bytes = share * static_cast<double>(graph.bytes(of));
    } else {
      continue;
    }
    sum.kernels += further.kernels;
    sum.moved += further.moves * bytes;
  }
  return sum;
}

Nanoseconds StackCost::routed_ns(const Graph& graph, OpId id, const RoutedWork& routed) const {
  const Nanoseconds alone = RooflineCost::routed_ns(graph, id, routed);
  const Op& op = graph.op(id);
  if (graph.def(id).lane != LaneKind::kCompute || is_view(graph, op)) return alone;
  const Device& device = network()->device;
  const Further more = further(graph, id, routed.work);
  const auto ns = [&](double seconds) {
    return checked_ns(std::ceil(seconds * kNsPerSecond), [&] {
      return fmt::format("op '{}', by the stack '{}',", op.name, stack_.name);
    });
  };
  return std::max(alone, ns(more.least) + device.launch_ns) +
         static_cast<Nanoseconds>(more.kernels) * device.launch_ns +
         ns(more.moved / (device.memory_bytes_per_s * memory_share(graph, id)));
}

Nanoseconds StackCost::host_ns(const Graph& graph, OpId id) const {
  const Op& op = graph.op(id);
  if (is_view(graph, op) || graph.def(id).lane == LaneKind::kHost) return 0;
  const bool recorded = stack_.graphs == Stack::Graphs::kLayer       ? op.layer >= 0
                        : stack_.graphs == Stack::Graphs::kAttention ? op.segment == Segment::kAttn
                                                                     : false;
  if (recorded && graph.def(id).lane == LaneKind::kCompute) return 0;
  const auto known = stack_.host_ns.find(graph.def(id).name);
  if (known != stack_.host_ns.end()) return known->second;
  const double kernels = 1 + further(graph, id, {}).kernels;
  return std::llround(kernels * static_cast<double>(stack_.host_launch_ns)) + stack_.host_op_ns;
}

std::string StackCost::describe() const {
  return fmt::format("{}, stack {}", RooflineCost::describe(), stack_.name);
}

}  // namespace moe
