// The graph's own legality.
#pragma once

#include "engine/graph/graph.h"

namespace moe {

/// Throws UserError naming the op, the tensor and `stage` (the pass that made this graph) when an
/// op has a wrong number of inputs, an input that nobody produces or that is produced later, an
/// output that its shape rule does not give, a name used twice, or mutates what it may not; when
/// ops join tensors in one storage as check_joined (joined.h) refuses; or when all tensors together
/// have more than kMostBytes (base/limits.h).
void verify(const Graph& graph, std::string_view stage);

}  // namespace moe
