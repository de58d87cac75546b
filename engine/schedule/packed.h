// A schedule as bytes for another process of the same program.
#pragma once

#include "engine/base/packing.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// Throws UserError naming a lane that picks by a function, which has no bytes.
void put_schedule(const Schedule& schedule, Packer& packer);
Schedule get_schedule(Unpacker& unpacker);

}  // namespace moe
