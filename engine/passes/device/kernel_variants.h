// How a device runs the ops that it may run in several variants (OpDef::variants): the last edit of
// a plan's graph, after all passes and before the schedulers, whose costs are then those of what
// runs. The usual variant leaves no attribute, so a plan that chooses nothing is the same plan.
#pragma once

#include <map>
#include <string>

#include "engine/cost/cost_model.h"

namespace moe {

/// By attribute (KernelVariants::attribute) the variant that is wanted: ops that have it take it,
/// others of that attribute stay as they are.
using WantedVariants = std::map<std::string, std::string>;

/// Requires: every name is one of some op's OpDef::variants.
Graph select_variants(Graph graph, const WantedVariants& wanted);

/// Each op with several variants, of which its attributes name none, takes the one in which it is
/// over first alone by the cost model; of equal ones the earlier of KernelVariants::names. Ops with
/// the same signature share the choice, so none is asked for twice.
Graph autotune_variants(Graph graph, const CostModel& cost, const WantedVariants& but_not = {});

}  // namespace moe
