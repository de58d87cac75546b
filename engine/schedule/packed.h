// A schedule as bytes for another process of the same program.
#pragma once

#include "engine/base/packing.h"
#include "engine/schedule/schedule.h"

namespace moe {

void put_schedule(const Schedule& schedule, Packer& packer);
/// Functions that lanes pick by stay where they are: to call one throws RunError naming the lane.
Schedule get_schedule(Unpacker& unpacker);

}  // namespace moe
