// The pipeline schedules that are built in: pure functions from numbers to turns. Further ones are
// Lua files (scripts/moe/pipelines), which a recipe's own schedules are like.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/option.h"
#include "engine/pipeline/turn.h"

namespace moe::pipeline {

/// The numbers for which a schedule is asked. Each is at least 1; group: 0, the default.
struct Query {
  int64_t ranks = 1, chunks = 1, micro_batches = 1;
  int64_t group = 0;  // micro-batches that pass one chunk before the next has its turn
};

struct ScheduleDef {
  std::string name, doc;
  std::vector<OptionSpec> options;  // "group", or none
  int64_t chunks;                   // stages per rank unless asked for others
  Placing placing;
  /// Returns the turns of a rank, those of a stage with its micro-batches in ascending order.
  /// Throws refusal() if the schedule does not exist for these numbers.
  Turns (*turns)(const Query& query, int64_t rank);
};

const std::vector<ScheduleDef>& schedules();

/// Returns the error that a schedule does not exist: "short_last_group: the last group has ..".
UserError refusal(std::string_view code, std::string_view reason);

}  // namespace moe::pipeline
