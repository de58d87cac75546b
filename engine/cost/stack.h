// Stack: what the software that runs the kernels adds to the ops of a graph: further kernels,
// further passes over memory, products with masks in place of moved rows, and host time. Values
// come from a data file (scripts/moe/stacks/), of which nothing here knows a name.
#pragma once

#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/cost/cost_model.h"

namespace moe {

/// Kernels that run beside an op's own one and together read or write the operand `of` so many
/// times; only for ops that have the operands `of` and, if it is given, `with`, and that multiply
/// in the type `products`, "fp8" or "fp8_block", if it is given.
///
/// With `of` = kMasks, rows are not moved by an index: the op is a product with a mask of one
/// number per token, expert and slot, at the rate of products, and the kernels make and read masks
/// of this size. Packed rows (Tensor::stored_rows) have no slots and thus no masks.
struct FurtherKernels {
  static constexpr const char* kMasks = "masks";
  std::string of, with;
  double kernels = 0, moves = 0;
  std::string products;
};

struct Stack {
  std::string name;
  /// Host time of a kernel, and of an op in addition. The host works ahead of the device.
  Nanoseconds host_launch_ns = 0, host_op_ns = 0;
  /// Host time of an op in place of that of its kernels, by the name of the op's kind.
  std::map<std::string, Nanoseconds> host_ns;
  std::set<std::string> waits;  // kinds of ops whose results the host reads before it goes on
  /// Which ops are launched as recorded graphs, in which the host has no time for each: none, those
  /// of attention, or all of layers.
  enum class Graphs : uint8_t { kNone, kAttention, kLayer } graphs = Graphs::kNone;
  std::map<std::string, std::vector<FurtherKernels>> ops;  // indexed by the name of the op's kind
  /// Share of the device's memory rate that kernels without products reach, by the name of the op's
  /// kind; of kinds that are not named, memory_others.
  std::map<std::string, double> memory;
  double memory_others = 1;
};
constexpr std::array<const char*, 3> names_of(Stack::Graphs) {
  return {"none", "attention", "layer"};
}

/// The roofline under a stack: an op of the compute lane that is no view has its further kernels,
/// each with the device's launch, and its further passes at the memory rate. An op that moves only
/// a part of its operands' rows moves the same part in further passes. The host launches the
/// kernels of all ops, of a transfer one.
class StackCost : public RooflineCost {
 public:
  StackCost(RooflineCost roofline, Stack stack)
      : RooflineCost(std::move(roofline)), stack_(std::move(stack)) {}
  Nanoseconds routed_ns(const Graph& graph, OpId op, const RoutedWork& routed) const override;
  bool has_host() const override {
    return stack_.host_launch_ns + stack_.host_op_ns > 0 || !stack_.host_ns.empty();
  }
  Nanoseconds host_ns(const Graph& graph, OpId op) const override;
  bool host_waits(const Graph& graph, OpId op) const override {
    return stack_.waits.contains(graph.def(op).name);
  }
  std::string describe() const override;

 protected:
  double memory_share(const Graph& graph, OpId op) const override {
    const auto found = stack_.memory.find(graph.def(op).name);
    return found == stack_.memory.end() ? stack_.memory_others : found->second;
  }

 private:
  /// The further kernels of an op, the bytes that they move, and the least seconds that it takes.
  struct Further {
    double kernels = 0, moved = 0, least = 0;
  };
  Further further(const Graph& graph, OpId op, const WorkContext& context) const;

  Stack stack_;
};

}  // namespace moe
