// The order in which the stages of a system run. It follows from what they declare that they need
// and give (Fact), whatever the order in which a recipe lists them. Running them is in pipeline.h.
#pragma once

#include <vector>

#include "engine/passes/pass.h"

namespace moe {

/// Returns the stages in the order in which they run: by kind (StageKind); within a kind, a stage
/// that needs a fact runs after all stages that give it, and otherwise built-in passes run in the
/// order of their table. A function that declares nothing keeps its place between its neighbours of
/// the same kind. Throws UserError naming two stages that ask for opposite orders.
std::vector<Stage> in_order(const std::vector<Stage>& stages);

}  // namespace moe
