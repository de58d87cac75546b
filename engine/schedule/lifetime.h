// Who writes and who reads each tensor, and for how long it must stay.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/schedule/schedule.h"

namespace moe {

struct TensorUses {
  explicit TensorUses(const Graph& graph);

  std::vector<OpId> producer;              // by tensor, invalid for what a step finds
  std::vector<std::vector<OpId>> readers;  // by tensor, in program order, without doubles
};

/// Parameters, states and inputs: storage of their own, across steps.
bool is_persistent(const Graph& graph, TensorId tensor);

/// What a step returns: one element that nobody reads (the loss). It stays until the step ends;
/// every other tensor that nobody reads dies where it is made.
bool is_result(const Graph& graph, const TensorUses& uses, TensorId tensor);

}  // namespace moe
