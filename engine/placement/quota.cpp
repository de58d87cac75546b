#include "engine/placement/quota.h"

#include <algorithm>

#include "engine/base/errors.h"

namespace moe {

void share_by_quota(Placement& placement, int64_t expert, const ExpertCounts& loads,
                    const std::vector<Quota>& quotas) {
  placement.set_sharing(expert, Sharing::kWeighted);
  const size_t devices = static_cast<size_t>(loads.sources), holders = quotas.size();
  std::vector<int64_t> left(devices), room(holders), slots(holders), at_home(devices, -1);
  int64_t sum = 0;
  for (size_t s = 0; s < devices; ++s) {
    left[s] = loads.at(static_cast<int64_t>(s), expert);
    sum += left[s];
  }
  for (size_t h = 0; h < holders; ++h) {
    slots[h] = placement.slot_of(expert, quotas[h].device);
    const auto home = static_cast<size_t>(quotas[h].device);
    const int64_t own = std::min(left[home], quotas[h].tokens);
    at_home[home] = static_cast<int64_t>(h);
    room[h] = quotas[h].tokens - own;
    left[home] -= own;
    sum -= quotas[h].tokens;
  }
  MOE_CHECK(sum == 0, "quotas of expert {}: {} tokens of the expert are in no quota", expert, sum);
  size_t next = 0;
  for (size_t s = 0; s < devices; ++s) {
    const auto source = static_cast<int64_t>(s);
    const int64_t all = loads.at(source, expert), scale = 1 + (all - 1) / Placement::kMaxWeight;
    std::vector<int64_t> parts(holders);
    if (at_home[s] >= 0) parts[static_cast<size_t>(at_home[s])] = all - left[s];
    while (left[s] > 0) {
      while (room[next] == 0) ++next;
      const int64_t part = std::min(left[s], room[next]);
      parts[next] += part, left[s] -= part, room[next] -= part;
    }
    if (all == 0) parts[0] = 1;  // a source without tokens needs a holder too
    for (size_t h = 0; h < holders; ++h) {
      placement.set_weight(source, quotas[h].device, slots[h], (parts[h] + scale - 1) / scale);
    }
  }
}

}  // namespace moe
