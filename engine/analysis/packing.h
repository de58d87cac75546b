// What Lina's expert packing moves once, before it pays off: the exchange that brings each device
// the experts that it is to hold (ATC 2023, section 4.4).
#pragma once

#include "engine/plan.h"

namespace moe {

/// How long the exchange takes for groups of ModelSpec::ep devices (0: all) with a copy of every
/// expert each: the busiest NIC, or port inside a node, receives parameters and momentum of all
/// layers from their first owners, all at once.
double packing_exchange_ms(const PlanSpec& spec);

}  // namespace moe
