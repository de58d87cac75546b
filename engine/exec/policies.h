// Calls of placement policies by a rank while a step runs, whether the rank's memory is that of the
// CPU or of a device. The policies themselves are in placement/.
#pragma once

#include <functional>
#include <string>

#include "engine/exec/executor.h"

namespace moe {

/// Returns the policy of a place op for this rank: the one that `policies` has, or the built-in
/// policy, called by ask_policy(). When a policy throws, its message is stored in `failure`, and
/// the placement stays unchanged from then on. `last` and `failure` are the same for all place ops
/// of a rank, and must outlive the function that is returned.
PlacementFunction policy_of(const Op& place, const Policies& policies, int64_t rank,
                            LastPlaced& last, std::string& failure);

/// Returns the placement in force in this step and the next one, without row counts (see
/// count_rows). at(tensor) is the address of a tensor's values in memory of the CPU.
PlacementRecord placement_record(const Graph& graph, const Op& place,
                                 const std::function<const void*(TensorId)>& at);

}  // namespace moe
