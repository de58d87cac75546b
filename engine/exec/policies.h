// Placement policies as a rank asks them while a step runs, wherever its memory is.
#pragma once

#include <functional>
#include <string>

#include "engine/exec/executor.h"

namespace moe {

/// The policy of a place op as this rank sees it: that of `policies`, or the built-in one. One
/// that throws leaves the placement as it is from then on, and is told in `failure`, which outlives
/// it.
PlacementFunction policy_of(const Op& place, const Policies& policies, int64_t rank,
                            std::string& failure);

/// What a place op did in a step. at: where a tensor can be read on the host.
PlacementRecord placement_record(const Graph& graph, const Op& place,
                                 const std::function<const void*(TensorId)>& at);

}  // namespace moe
