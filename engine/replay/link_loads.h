// What the links of a wire carried, as a timeline has it.
#pragma once

#include <vector>

#include "engine/network/wire.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// use: of the wire's links (Wire::take_use), its times those of the timeline.
std::vector<LinkLoad> link_loads(const Wire& wire, const std::vector<LinkUse>& use);

}  // namespace moe
