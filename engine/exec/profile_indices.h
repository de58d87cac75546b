// Values for the index tensors of an op that is timed alone: token ids as skewed as a text's, maps
// and counts of a balanced routing.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace moe {

/// The elements of input i, an i32 tensor. Zeros for an input that no rule knows.
std::vector<int32_t> index_values(const Graph& graph, OpId op, size_t input);

/// The share of an op's slots, 0 to 1, that hold a token when the gate of its layer (else any gate
/// of the graph) spreads its tokens evenly; 1 without a gate.
double balanced_fill(const Graph& graph, OpId op);

}  // namespace moe
