// Which of an op's operands must be finite when it is over. The executor looks at them after each
// op, and the profiler counts that look as part of the op's time.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace moe {

/// Float outputs that the op writes whole, and the parameter that it updates. Of an all-to-all
/// none: its senders have been looked at; nor of a view, nor of a part that holds some rows only
/// (attr share): they are looked at where join_rows puts them together.
std::vector<TensorId> finite_operands(const Graph& graph, const Op& op);

}  // namespace moe
