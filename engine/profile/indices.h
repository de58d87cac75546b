// Values for the index tensors of an op that is timed alone: token ids as skewed as a text's, maps
// and counts of a balanced routing, at a slot occupancy that the caller gives.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"

namespace moe {

/// The elements of input i, an i32 tensor. Zeros for an input that no rule knows. Of an expert's
/// capacity so many places hold a token as the slot occupancy (0 to 1) says, rounded, or as there
/// are choices; what finds no place is dropped.
std::vector<int32_t> index_values(const Graph& graph, OpId op, size_t input,
                                  const WorkContext& context);

}  // namespace moe
