// Stack: what the software that runs the kernels adds to the ops of a graph: further kernels,
// further passes over memory, products with masks in place of moved rows, and host time. Values
// come from a data file (scripts/moe/stacks/), of which nothing here knows a name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/cost/cost_model.h"

namespace moe {

/// Kernels that run beside an op's own one and together read or write the operand `of` so many
/// times; only for ops that have the operands `of` and, if it is given, `with`.
///
/// With `of` = kMasks, rows are not moved by an index: the op is a product with a mask of one
/// number per token, expert and slot, at the rate of products, and the kernels make and read masks
/// of this size. Packed rows (Tensor::stored_rows) have no slots and thus no masks.
struct FurtherKernels {
  static constexpr const char* kMasks = "masks";
  std::string of, with;
  double kernels = 0, moves = 0;
};

struct Stack {
  std::string name;
  /// Host time of a kernel, and of an op in addition. The host works while the device does, so that
  /// an op takes no less than its host time, and no longer unless that is longer than its kernels.
  Nanoseconds host_launch_ns = 0, host_op_ns = 0;
  std::map<std::string, std::vector<FurtherKernels>> ops;  // indexed by the name of the op's kind
};

/// The roofline under a stack: an op of the compute lane that is no view has its further kernels,
/// each with the device's launch, its further passes at the memory rate, and no less than its host
/// time. An op that moves only a part of its operands' rows moves the same part in further passes.
class StackCost : public RooflineCost {
 public:
  StackCost(RooflineCost roofline, Stack stack)
      : RooflineCost(std::move(roofline)), stack_(std::move(stack)) {}
  Nanoseconds routed_ns(const Graph& graph, OpId op, const RoutedWork& routed) const override;
  std::string describe() const override;

 private:
  Stack stack_;
};

}  // namespace moe
