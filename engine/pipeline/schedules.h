// The pipeline schedules of the engine. Further ones are Lua files (scripts/moe/pipelines).
#pragma once

#include <string>
#include <vector>

#include "engine/pipeline/turn.h"

namespace moe::pipeline {

/// The numbers for which a schedule is asked, each at least 1.
struct Query {
  int64_t ranks = 1, chunks = 1, micro_batches = 1;
  int64_t group = 1;  // micro-batches that pass one chunk before the next; see `grouped`
};

struct ScheduleDef {
  std::string name, doc;
  int64_t chunks;     // stages per rank unless asked for others
  bool fixed_chunks;  // whether only so many are possible
  bool grouped;       // has groups, from ranks to micro_batches, the last not below ranks
  Placing placing;
  /// Throws UserError "code: reason" if the schedule does not exist for these numbers.
  Turns (*turns)(const Query& query, int64_t rank);
};

const std::vector<ScheduleDef>& schedules();

}  // namespace moe::pipeline
