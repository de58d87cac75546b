// What the gates of one rank did in a step, kept until all ranks are done: assignments are chained
// into one checksum over ranks in order, which no rank can do alone.
#pragma once

#include <functional>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// A copy of one gate op's outputs. A gate that was cut into parts has one record per part.
struct GateRecord {
  int64_t layer = 0;
  int64_t part = 0;
  RoutingMaps maps;  // points into the vectors
  AssignmentCode code = AssignmentCode::kChoices;
  std::vector<int32_t> expert, choice_slot, counts;
  double margin = 0;

  GateRecord(const Graph& graph, OpId op, AssignmentCode code);
  GateRecord(const GateRecord&) = delete;
  GateRecord& operator=(const GateRecord&) = delete;

  /// Reads the op's outputs, and its biases; called after it and before its buffers may be taken
  /// over. at: where a tensor can be read on the host. T is the float type of the run.
  template <class T>
  void capture(const Graph& graph, OpId op, const std::function<const void*(TensorId)>& at);
};

/// The gate of each gate op as this rank has it: of the plan's routing model, of `policies`, or the
/// built-in one that the op names. Called on the thread that will call the gates.
std::function<Gate(const Op&)> gates_of(const Plan& plan, const Policies& policies, int64_t rank);

/// A rank's part of a router loss of the last step.
struct RouterLoss {
  int64_t layer = 0;
  bool is_z = false;
  double value = 0;
};

/// records[rank], losses[rank]: one rank's, in any order. Returns one entry per layer, ascending.
std::vector<MoeStats> moe_stats(const std::vector<std::vector<const GateRecord*>>& records,
                                const std::vector<std::vector<RouterLoss>>& losses);

}  // namespace moe
