// Which ops write and read each tensor, and how long a tensor must stay in memory. Where tensors
// are placed is in memory.h.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/schedule/schedule.h"

namespace moe {

struct TensorUses {
  explicit TensorUses(const Graph& graph);

  std::vector<OpId> producer;  // per tensor; invalid if the tensor exists before the step
  std::vector<std::vector<OpId>> readers;  // per tensor, in program order, each op once
};

/// Whether the tensor is a parameter, state or input, which has its own storage in all steps.
bool is_persistent(const Graph& graph, TensorId tensor);

/// Whether the tensor is a result of the step: a single element that no op reads (the loss). A
/// result stays until the step ends; another tensor without readers is dead once it is written.
bool is_result(const Graph& graph, const TensorUses& uses, TensorId tensor);

}  // namespace moe
