#include <algorithm>

#include "engine/base/errors.h"
#include "engine/placement/placement.h"

namespace moe {
namespace {

/// The holders of one expert, computed once for all sources.
struct Holders {
  std::vector<int64_t> devices;  // ascending
  std::vector<int64_t> slots;    // the slot on each of these devices
  size_t owner = 0;              // position of the owner in `devices`

  size_t of(int64_t device) const {
    const auto i = std::lower_bound(devices.begin(), devices.end(), device);
    return i != devices.end() && *i == device ? static_cast<size_t>(i - devices.begin())
                                              : devices.size();
  }
};

std::vector<Holders> all_holders(const Placement& placement) {
  const PlacementBounds& b = placement.bounds();
  std::vector<Holders> all(static_cast<size_t>(b.experts));
  for (int64_t d = 0; d < b.devices; ++d) {
    for (int64_t s = 0; s < b.slots(); ++s) {
      const int64_t expert = placement.at(d, s);
      if (expert < 0) continue;
      Holders& holders = all[static_cast<size_t>(expert)];
      if (placement.owner(expert) == d) holders.owner = holders.devices.size();
      holders.devices.push_back(d);
      holders.slots.push_back(s);
    }
  }
  return all;
}

Holders holders_of(const Placement& placement, int64_t expert) {
  Holders holders;
  holders.devices = placement.holders(expert);
  for (const int64_t d : holders.devices) holders.slots.push_back(placement.slot_of(expert, d));
  holders.owner = holders.of(placement.owner(expert));
  return holders;
}

/// Calls take(RowRange) for each holder that gets rows of the source.
template <class Take>
void share(const Placement& placement, int64_t expert, const Holders& holders, int64_t source,
           int64_t rows, const Take& take) {
  if (rows == 0) return;
  const Sharing sharing = placement.sharing(expert);
  const size_t n = holders.devices.size();
  if (sharing == Sharing::kLocal) {
    const size_t own = holders.of(source), i = own < n ? own : holders.owner;
    return take(RowRange{holders.devices[i], holders.slots[i], 0, rows});
  }
  const auto weight_of = [&](size_t i) {
    return sharing == Sharing::kEven
               ? 1
               : placement.weight(source, holders.devices[i], holders.slots[i]);
  };
  const size_t first = sharing == Sharing::kEven ? static_cast<size_t>(source) % n : 0;
  if (placement.bounds().by_source) {
    size_t most = first;
    for (size_t i = 0; i < n; ++i) most = weight_of(i) > weight_of(most) ? i : most;
    return take(RowRange{holders.devices[most], holders.slots[most], 0, rows});
  }
  int64_t sum = 0, before = 0, begin = 0;
  for (size_t i = 0; i < n; ++i) sum += weight_of(i);
  MOE_CHECK(
      sum > 0,
      "placement: the weights of all holders of expert {} for source rank {} are 0; their sum must "
      "be positive",
      expert, source);
  for (size_t j = 0; j < n; ++j) {
    const size_t i = (first + j) % n;
    before += weight_of(i);
    // Rounded up, so that a source with fewer rows than holders gives them to the first holders.
    const int64_t end = (rows * before + sum - 1) / sum;
    if (end > begin) take(RowRange{holders.devices[i], holders.slots[i], begin, end});
    begin = end;
  }
}

/// Calls take(source, RowRange) for all rows of all sources.
template <class Take>
void share_all(const Placement& placement, const ExpertCounts& loads, const Take& take) {
  const PlacementBounds& b = placement.bounds();
  MOE_CHECK(
      loads.sources == b.devices && loads.experts == b.experts,
      "placement: the loads are of {} source ranks and {} experts, but the placement is of {} "
      "devices and {} experts; the numbers must be equal",
      loads.sources, loads.experts, b.devices, b.experts);
  const std::vector<Holders> holders = all_holders(placement);
  for (int64_t source = 0; source < b.devices; ++source) {
    for (int64_t e = 0; e < b.experts; ++e) {
      share(placement, e, holders[static_cast<size_t>(e)], source, loads.at(source, e),
            [&](const RowRange& range) { take(source, range); });
    }
  }
}

}  // namespace

std::vector<RowRange> share_rows(const Placement& placement, int64_t expert, int64_t source,
                                 int64_t rows) {
  std::vector<RowRange> ranges;
  share(placement, expert, holders_of(placement, expert), source, rows,
        [&](const RowRange& range) { ranges.push_back(range); });
  return ranges;
}

std::vector<int64_t> rows_by_slot(const Placement& placement, const ExpertCounts& loads) {
  const PlacementBounds& b = placement.bounds();
  std::vector<int64_t> rows(static_cast<size_t>(b.devices * b.slots() * b.devices));
  share_all(placement, loads, [&](int64_t source, const RowRange& range) {
    rows[static_cast<size_t>((range.device * b.slots() + range.slot) * b.devices + source)] +=
        range.end - range.begin;
  });
  return rows;
}

DeviceLoads device_loads(const Placement& placement, const ExpertCounts& loads) {
  DeviceLoads result;
  result.computed.resize(static_cast<size_t>(placement.bounds().devices));
  result.received = result.computed;
  share_all(placement, loads, [&](int64_t source, const RowRange& range) {
    const int64_t rows = range.end - range.begin;
    result.computed[static_cast<size_t>(range.device)] += rows;
    if (source != range.device) result.received[static_cast<size_t>(range.device)] += rows;
  });
  return result;
}

DeviceLoads device_loads(const Placement& placement, const ExpertCounts& loads,
                         const Group& group) {
  DeviceLoads result;
  result.computed.resize(static_cast<size_t>(loads.sources));
  result.received = result.computed;
  for (int64_t rank = 0; rank < loads.sources; ++rank) {
    if (group.place(rank) != 0) continue;
    const DeviceLoads own = device_loads(placement, of_group(loads, group, rank));
    for (int64_t place = 0; place < group.size; ++place) {
      const auto member = static_cast<size_t>(group.member(rank, place));
      result.computed[member] = own.computed[static_cast<size_t>(place)];
      result.received[member] = own.received[static_cast<size_t>(place)];
    }
  }
  return result;
}

}  // namespace moe
