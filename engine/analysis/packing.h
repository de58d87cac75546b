// The one-time cost of the expert packing of the paper Lina (ATC 2023, section 4.4), in which a
// device holds several experts: the exchange that sends each device the experts that it will hold.
// What packing gains per step is not here.
#pragma once

#include "engine/plan.h"

namespace moe {

/// Returns the milliseconds that the exchange takes if each group of ModelSpec::ep devices (0 means
/// all devices) gets all experts. In the exchange the devices receive parameters and momentum of
/// all layers from the devices that own the experts before it. It lasts until the NICs of a node,
/// or the port of a device, that take longest to receive their bytes are done.
double packing_exchange_ms(const PlanSpec& spec);

}  // namespace moe
