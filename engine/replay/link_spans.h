// What the links of a wire carried, as a timeline has it.
#pragma once

#include <vector>

#include "engine/network/wire.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// use: of the wire's links (Wire::take_use), its times those of the timeline. A ring changes the
/// rates at each of its steps: a link with more changes than `most` is averaged over so many equal
/// intervals, in each of which it carries the same bytes.
std::vector<LinkSpan> link_spans(const Wire& wire, const std::vector<LinkUse>& use,
                                 size_t most = 500);

}  // namespace moe
