// Numbers that each rank counts in a step. To add one, write a member, its row in fields_of and the
// line that counts it: it is then sent between processes and appears in the results of each rank.
// All are 0 when a step begins. On a CPU, the compute lane's thread writes the loss into the rank's
// report; each lane's thread counts its cpu_ns and behind_ns separately, and Rank::report() joins
// them. On a GPU, DeviceRank::report() counts.
#pragma once

#include "engine/base/field.h"

namespace moe {

struct RankStats {
  double loss = 0;
  Nanoseconds cpu_ns = 0;
  Nanoseconds behind_ns = 0;
};
constexpr auto fields_of(const RankStats*) {
  return field_table<RankStats>(
      field("loss", &RankStats::loss, "the rank's part of the cross entropy"),
      field("cpu_ms", &RankStats::cpu_ns, "CPU time of the rank's threads; 0 on a GPU")
          .in(kMilliseconds),
      field("behind_ms", &RankStats::behind_ns,
            "with a pace: how much later than its computed end an op of the rank ended, at most, "
            "divided by the pace as all times")
          .in(kMilliseconds));
}

}  // namespace moe
