// In-step factors: how much longer ops take inside a training step than alone. Executed steps give
// them (exec/rehearsal.h); ProfileCost applies them to ops profiled alone.
#pragma once

#include <map>
#include <string>

#include "engine/base/units.h"
#include "engine/graph/graph.h"

namespace moe {

/// What an op shares its in-step figure with: "linear forward", kind and phase, of a compute op,
/// and the kind alone, "all_to_all", of a collective.
std::string step_group(const Graph& graph, OpId op);

struct InStep {
  /// What they rest on, for results: "8 steps of plain expert parallelism, link of 0.5 GB/s".
  std::string source;
  /// Duration in a step over duration alone, by step_group() of compute ops.
  std::map<std::string, double> factors;
  /// The same of all compute ops together: what groups that were not seen take.
  double overall = 1;
  /// Compute of the slowest rank between two collectives over that of the mean rank: ranks whose
  /// times vary wait for each other. All compute ops take it on top.
  double peers = 1;
  /// By step_group() of collectives: from when the model says that it is over to when it is, as
  /// results are unpacked and checked and a sleeping lane wakes late. Groups that were not seen
  /// take the least of them.
  std::map<std::string, Nanoseconds> late;
  /// Bytes of a message at which a group was late by that, means. What it exceeds the least
  /// lateness by is in proportion to bytes, as unpacking and checking are; groups without bytes
  /// here are late by the same whatever their size.
  std::map<std::string, double> late_bytes;
  /// What a collective takes from the core that computes beside it, on top of moving its bytes:
  /// waking, meeting, spinning before the end.
  Nanoseconds core_ns = 0;
  /// How much later than `late` a collective ends under compute: its lane waits for the core.
  Nanoseconds core_late_ns = 0;
  /// Time that the steps took; 0 where they were known.
  Nanoseconds took_ns = 0;

  /// Of a collective of the group with a message of so many bytes; 0 where none was seen.
  Nanoseconds late_of(const std::string& group, double bytes) const;
  /// Duration in a step of an op that takes `alone`; not below 0.
  Nanoseconds of_compute(const std::string& group, Nanoseconds alone) const;
  Nanoseconds of_collective(const std::string& group, double bytes, Nanoseconds alone) const;
  std::string describe() const;
};

}  // namespace moe
