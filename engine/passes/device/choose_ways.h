// How a device runs the ops that it may run in several ways (OpDef::ways): the last edit of a
// plan's graph, after all passes and before the schedulers, whose costs are then those of what
// runs. The usual way leaves no attribute, so a plan that chooses nothing is the same plan.
#pragma once

#include <map>
#include <string>

#include "engine/cost/cost_model.h"

namespace moe {

/// By attribute (OpWays::attribute) the way that is wanted: ops that have it take it, others of
/// that attribute stay as they are.
using WantedWays = std::map<std::string, std::string>;

/// Requires: every name is one of some op's OpDef::ways.
Graph take_ways(Graph graph, const WantedWays& wanted);

/// Each op with several ways, of which its attributes name none, takes the one in which it is over
/// first alone by the cost model; of equal ones the earlier of OpWays::names. Ops with the same
/// signature share the choice, so none is asked for twice.
Graph take_quickest_ways(Graph graph, const CostModel& cost, const WantedWays& but_not = {});

}  // namespace moe
