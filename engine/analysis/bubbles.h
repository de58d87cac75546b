// Bubbles of a pipeline: the time in which the ranks of a pipeline rank compute nothing, by cause.
// The causes of a rank add up to its step without its compute.
#pragma once

#include <string>
#include <vector>

#include "engine/base/field.h"
#include "engine/plan.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// What a pipeline rank does in a step, mean over its ranks. Before a compute op that begins later
/// than the one before it ended, the time belongs to what it waited for, step by step back to that
/// end: op by op along whatever ended last.
struct Bubbles {
  Nanoseconds busy_ns = 0;
  Nanoseconds fill_ns = 0;   // before the first compute op
  Nanoseconds drain_ns = 0;  // behind the last
  Nanoseconds stages_ns = 0;
  Nanoseconds wire_ns = 0;
  Nanoseconds exchange_ns = 0;
  Nanoseconds members_ns = 0;
  Nanoseconds host_ns = 0;
};
constexpr auto fields_of(const Bubbles*) {
  return field_table<Bubbles>(
      field("busy_ms", &Bubbles::busy_ns, "compute").in(kMilliseconds),
      field("fill_ms", &Bubbles::fill_ns, "before the first turn").in(kMilliseconds),
      field("drain_ms", &Bubbles::drain_ns, "behind the last op").in(kMilliseconds),
      field("stages_ms", &Bubbles::stages_ns, "waiting for turns of other pipeline ranks")
          .in(kMilliseconds),
      field("wire_ms", &Bubbles::wire_ns, "waiting for a transfer between pipeline ranks")
          .in(kMilliseconds),
      field("exchange_ms", &Bubbles::exchange_ns,
            "waiting for a transfer among the ranks of the pipeline rank")
          .in(kMilliseconds),
      field("members_ms", &Bubbles::members_ns,
            "waiting for another rank of the pipeline rank that came later to such a transfer")
          .in(kMilliseconds),
      field("host_ms", &Bubbles::host_ns, "waiting for the host, or for a lane to wake")
          .in(kMilliseconds));
}

/// Returns the bubbles of each pipeline rank of a timeline of the plan.
std::vector<Bubbles> bubbles_of(const Plan& plan, const Timeline& timeline);

/// A turn as cells have it ("2F5": stage, kind, micro-batch, from 0), and when the first and the
/// last compute op of it began and ended on the first rank.
struct TurnTime {
  std::string text;
  Nanoseconds begin = 0, end = 0;
};
/// Returns the turns of each pipeline rank, in their order, without those that compute nothing.
std::vector<std::vector<TurnTime>> turns_of(const Plan& plan, const Timeline& timeline);

}  // namespace moe
