// Values for the index tensors of an op that is timed alone: token ids with a skew as in text, and
// maps and counts of a balanced routing at a slot occupancy that the caller gives. Values of
// floating-point tensors are in operands.h.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"

namespace moe {

/// Returns the elements of input number `input`, an i32 tensor; zeros for an input without a rule.
/// The slot occupancy (0 to 1) is the fraction of an expert's slots that hold a token, rounded to
/// whole slots, or less if there are fewer choices. Choices for which no slot is left are dropped.
std::vector<int32_t> index_values(const Graph& graph, OpId op, size_t input,
                                  const WorkContext& context);

}  // namespace moe
