#include "engine/schedule/packed.h"

#include "engine/base/errors.h"

namespace moe {

void put_schedule(const Schedule& schedule, Packer& packer) {
  packer.put(schedule);
}

Schedule get_schedule(Unpacker& unpacker) {
  Schedule schedule;
  unpacker.get(schedule);
  for (Lane& lane : schedule.lanes) {
    if (lane.pick != Pick::kPolicy) continue;
    lane.choose = [where = fmt::format("lane {} (stage {})", lane.name, lane.stage)](
                      std::span<const OpId>) -> OpId {
      throw run_error("{}: its pick function only exists in the process that made the plan", where);
    };
  }
  return schedule;
}

}  // namespace moe
