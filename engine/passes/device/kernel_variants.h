// Chooses how a device runs each op that has several variants of its kernel (OpDef::variants). This
// is the last edit of a plan's graph, after all passes and before the schedulers, so that the
// schedulers use the costs of the variants that really run.
// Invariant: the default variant (the first one) is written as no attribute, so a plan in which
// every op keeps its default is unchanged.
#pragma once

#include <map>
#include <string>

#include "engine/cost/cost_model.h"

namespace moe {

/// The wanted variant for each attribute (KernelVariants::attribute). Ops that have this variant
/// take it; other ops with the same attribute stay as they are.
using WantedVariants = std::map<std::string, std::string>;

/// Sets the wanted variants. Requires: each name is a variant of at least one op (OpDef::variants).
Graph select_variants(Graph graph, const WantedVariants& wanted);

/// For each op with several variants whose attributes name none, chooses the variant that ends
/// first when the op runs alone, according to the cost model; of several equal ones the first in
/// KernelVariants::names. Attributes in `but_not` are left alone. Ops with the same signature share
/// the choice, so the cost model is called once per signature.
Graph autotune_variants(Graph graph, const CostModel& cost, const WantedVariants& but_not = {});

}  // namespace moe
