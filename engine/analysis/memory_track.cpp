#include "engine/analysis/memory_track.h"

#include <algorithm>
#include <limits>
#include <map>

namespace moe {

MemoryTrack::MemoryTrack(const Plan& plan, const Timeline& timeline)
    : plan_(plan),
      num_ranks_(static_cast<size_t>(timeline.num_ranks)),
      lives_(storage_lives(plan.graph, plan.schedule, plan.orders, plan.memory)),
      begins_(plan.graph.num_ops() * num_ranks_, std::numeric_limits<Nanoseconds>::max()),
      ends_(begins_.size()),
      over_(num_ranks_) {
  for (const Span& span : timeline.spans) {
    const size_t i = at(span.op, span.rank);
    begins_[i] = std::min(begins_[i], span.begin);
    ends_[i] = std::max(ends_[i], span.end);
    Nanoseconds& over = over_[static_cast<size_t>(span.rank)];
    over = std::max(over, span.end);
  }
}

std::vector<MemoryInUse> MemoryTrack::of(int32_t rank) const {
  std::map<Nanoseconds, Bytes> changes{{0, plan_.memory.persistent_bytes}};
  const Nanoseconds over = over_[static_cast<size_t>(rank)];
  for (const StorageLife& life : lives_) {
    const Nanoseconds from = begins_[at(life.first, rank)];
    Nanoseconds to = life.last.empty() ? over : 0;
    for (const OpId op : life.last) to = std::max(to, ends_[at(op, rank)]);
    if (from >= to) continue;
    changes[from] += life.bytes;
    changes[to] -= life.bytes;
  }
  std::vector<MemoryInUse> track;
  Bytes bytes = 0;
  for (const auto& [time, change] : changes) {
    bytes += change;
    if (track.empty() || track.back().bytes != bytes) track.push_back({time, bytes});
  }
  return track;
}

}  // namespace moe
