// Which tensors that an op writes must be finite after it has run. The executors check them after
// each op, and the profiler measures this check as part of the op's time.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace moe {

/// Returns the float outputs that the op writes completely, and the parameter that it updates. Not
/// included are outputs of an all-to-all (its senders' tensors have been checked), views, and
/// outputs of which the op writes some rows only (attrs loose and share): those of a part along the
/// batch are checked where join_rows combines them.
std::vector<TensorId> finite_operands(const Graph& graph, const Op& op);

}  // namespace moe
