// How many bytes of a device are in use over a step, on a timeline of the plan.
#pragma once

#include <vector>

#include "engine/plan.h"
#include "engine/timeline/timeline.h"

namespace moe {

class MemoryTrack {
 public:
  MemoryTrack(const Plan& plan, const Timeline& timeline);
  /// Returns the bytes in use on `rank`: persistent storage, and each block of the arena from the
  /// begin of its first op until the end of its last. Without scratch, and without bytes of the
  /// arena that no block uses at the time. Ascending by time, from 0 on.
  std::vector<MemoryInUse> of(int32_t rank) const;

 private:
  size_t at(OpId op, int32_t rank) const {
    return op.index() * num_ranks_ + static_cast<size_t>(rank);
  }

  const size_t num_ranks_;
  int32_t ranks_each_ = 1;  // of a pipeline rank
  // By pipeline rank, with ops of the whole plan.
  std::vector<std::vector<StorageLife>> lives_;
  std::vector<Bytes> persistent_;
  std::vector<Nanoseconds> begins_, ends_;  // indexed by at(op, rank)
  std::vector<Nanoseconds> over_;           // per rank: when its last op ends
};

}  // namespace moe
