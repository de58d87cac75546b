// Packs a schedule into bytes, to send it to another process of the same job.
#pragma once

#include "engine/base/packing.h"
#include "engine/schedule/schedule.h"

namespace moe {

void put_schedule(const Schedule& schedule, Packer& packer);
/// Returns the schedule that put_schedule() packed, without the policy functions of its lanes
/// (Lane::choose): calling one throws RunError naming the lane.
Schedule get_schedule(Unpacker& unpacker);

}  // namespace moe
