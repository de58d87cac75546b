// Converts what the links of a Wire carried into the link spans of a timeline, without a change of
// the bytes carried. Names and rates of links come from network/fabric.h.
#pragma once

#include <vector>

#include "engine/network/wire.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// Returns the link spans for `use`, which Wire::take_use() returned for `wire`; times stay the
/// same. A ring changes rates at each of its steps, so the rate of a link with more than `most`
/// changes is averaged in each of `most` equal intervals; the bytes per interval stay the same.
std::vector<LinkSpan> link_spans(const Wire& wire, const std::vector<LinkUse>& use,
                                 size_t most = 500);

}  // namespace moe
