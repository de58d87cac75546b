// Numbers that each rank counts in a step. A new one is a member, its row and the line that counts
// it: it travels between processes, and results have it by rank. They are 0 when a step begins. The
// compute lane's thread counts in the rank's report; what other lanes count they keep apart, and
// Rank::report() adds it up. On a GPU DeviceRank::report() counts.
#pragma once

#include "engine/base/field.h"

namespace moe {

struct RankStats {
  double loss = 0;
  Nanoseconds cpu_ns = 0;
};
constexpr auto fields_of(const RankStats*) {
  return field_table<RankStats>(
      field("loss", &RankStats::loss, "the rank's part of the cross entropy"),
      field("cpu_ms", &RankStats::cpu_ns, "CPU time of the rank's threads; 0 on a GPU")
          .in(kMilliseconds));
}

}  // namespace moe
