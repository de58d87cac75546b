// Checks that a graph is legal (the invariants in graph.h). Legality of a schedule is in schedule/.
#pragma once

#include "engine/graph/graph.h"

namespace moe {

/// Throws UserError naming the op, the tensor and `stage` (the pass that made this graph) when: an
/// op has a wrong number of inputs; no op produces an input, or only a later one; an earlier op has
/// overwritten an input; an output differs from the shape rule; a name is used twice or has a
/// character that is not allowed; an op overwrites a tensor that it must not; ops join
/// tensors in a way that check_joined (joined.h) refuses; or all tensors together have more than
/// kMostBytes (base/limits.h).
void verify(const Graph& graph, std::string_view stage);

}  // namespace moe
