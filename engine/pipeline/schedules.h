// The pipeline schedules that are built in: pure functions from numbers to turns. Further ones are
// Lua files (scripts/moe/pipelines), which a recipe's own schedules are like.
#pragma once

#include <string>
#include <vector>

#include "engine/pipeline/turn.h"

namespace moe::pipeline {

/// The numbers for which a schedule is asked. Each is at least 1; group: 0, the default.
struct Query {
  int64_t ranks = 1, chunks = 1, micro_batches = 1;
  int64_t group = 0;  // micro-batches that pass one chunk before the next has its turn
};

struct ScheduleDef {
  std::string name, doc;
  int64_t chunks;     // stages per rank unless asked for others
  bool fixed_chunks;  // whether only so many are possible
  bool grouped;       // whether it has groups
  Placing placing;
  /// Returns the turns of a rank, those of a stage with its micro-batches in ascending order.
  /// Throws UserError "code: reason" if the schedule does not exist for these numbers.
  Turns (*turns)(const Query& query, int64_t rank);
};

const std::vector<ScheduleDef>& schedules();

}  // namespace moe::pipeline
