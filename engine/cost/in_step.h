// In-step factors: how much longer ops take inside a training step than alone. They are measured in
// executed steps (profile/rehearsal.h); ProfileCost applies them to ops profiled alone.
#pragma once

#include <map>
#include <string>

#include "engine/base/units.h"
#include "engine/graph/graph.h"

namespace moe {

/// Returns the group of ops that share one in-step factor: kind and phase for a compute op ("linear
/// forward"), the kind for a collective ("all_to_all").
std::string step_group(const Graph& graph, OpId op);

/// The factors of one model on one machine. Groups are those of step_group().
struct InStep {
  /// Where the factors come from: "8 steps of plain expert parallelism, link of 0.5 GB/s".
  std::string source;
  /// Duration in a step divided by duration alone, for each group of compute ops.
  std::map<std::string, double> factors;
  /// The same ratio over all compute ops; used for groups that are not in `factors`.
  double overall = 1;
  /// Compute time of the slowest rank between two collectives divided by that of the mean rank:
  /// ranks whose times vary wait for each other. Multiplies the time of every compute op.
  double peers = 1;
  /// For each group of collectives: how much later a collective ends than the cost model computes,
  /// because results are unpacked and checked and a sleeping lane wakes late. Groups without an
  /// entry use the smallest value in `late`.
  std::map<std::string, Nanoseconds> late;
  /// For each group, the mean message size in bytes of the collectives that `late` was measured on.
  /// The part of `late` above the smallest value of all groups scales with bytes, as unpacking and
  /// checking do; for groups without an entry it does not depend on bytes.
  std::map<std::string, double> late_bytes;
  /// Core time that a collective takes from compute on the same core, in addition to copying its
  /// bytes: waking, waiting for the other ranks, spinning before the end.
  Nanoseconds core_ns = 0;
  /// How much later than `late` a collective ends because its lane waits for a core that computes.
  Nanoseconds core_late_ns = 0;
  /// Distance between the quartiles of the measured steps' times, divided by their median.
  double spread = 0;
  /// By how much the speed of a core varied just before the measured steps: a standard deviation
  /// divided by the median (profile/machine_reading.h).
  double speed_spread = 0;
  /// Share of the cores that others took during the measured steps (exec/results/machine_state.h).
  double others = 0;
  /// How long the measured steps took.
  Nanoseconds took_ns = 0;
  /// By what factor the machine is slower than when the steps were measured. Multiplies the time of
  /// every compute op.
  double slower = 1;

  /// Returns how much later than the cost model computes a collective of the group with a message
  /// of `bytes` bytes ends; 0 if `late` is empty.
  Nanoseconds late_of(const std::string& group, double bytes) const;
  /// Return the duration in a step of an op that takes `alone` when it runs alone: of a compute op,
  /// or of a collective (at least 0).
  Nanoseconds of_compute(const std::string& group, Nanoseconds alone) const;
  Nanoseconds of_collective(const std::string& group, double bytes, Nanoseconds alone) const;
  std::string describe() const;
};

}  // namespace moe
