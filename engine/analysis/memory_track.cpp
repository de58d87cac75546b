#include "engine/analysis/memory_track.h"

#include <algorithm>
#include <limits>
#include <map>

namespace moe {

MemoryTrack::MemoryTrack(const Plan& plan, const Timeline& timeline)
    : num_ranks_(static_cast<size_t>(timeline.num_ranks)),
      begins_(plan.graph.num_ops() * num_ranks_, std::numeric_limits<Nanoseconds>::max()),
      ends_(begins_.size()),
      over_(num_ranks_) {
  const int64_t pipeline_ranks = plan.spec.pipeline_ranks();
  ranks_each_ = static_cast<int32_t>(timeline.num_ranks / pipeline_ranks);
  for (int64_t p = 0; p < pipeline_ranks; ++p) {
    const Plan& own = plan.program(p * plan.spec.num_ranks);
    lives_.push_back(storage_lives(own.graph, own.schedule, own.orders, own.memory));
    for (StorageLife& life : lives_.back()) {
      life.first = own.in_step(life.first);
      for (OpId& op : life.last) op = own.in_step(op);
    }
    persistent_.push_back(own.memory.persistent_bytes);
  }
  for (const Span& span : timeline.spans) {
    const size_t i = at(span.op, span.rank);
    begins_[i] = std::min(begins_[i], span.begin);
    ends_[i] = std::max(ends_[i], span.end);
    Nanoseconds& over = over_[static_cast<size_t>(span.rank)];
    over = std::max(over, span.end);
  }
}

std::vector<MemoryInUse> MemoryTrack::of(int32_t rank) const {
  const auto p = static_cast<size_t>(rank / ranks_each_);
  std::map<Nanoseconds, Bytes> changes{{0, persistent_[p]}};
  const Nanoseconds over = over_[static_cast<size_t>(rank)];
  for (const StorageLife& life : lives_[p]) {
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
