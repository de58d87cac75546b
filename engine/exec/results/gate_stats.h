// What the gates of one rank did in a step, kept until all ranks have finished: one checksum runs
// over the assignments of all ranks in rank order, which no rank can compute alone. Recording as a
// trace is in run_loop.cpp.
#pragma once

#include <functional>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// A copy of one gate op's outputs. A gate that was cut along the batch has one record per part.
struct GateRecord {
  int64_t layer = 0;
  int64_t micro = 0;
  int64_t part = 0;
  RoutingMaps maps;  // points into the vectors below
  AssignmentCode code = AssignmentCode::kChoices;
  std::vector<int32_t> expert, choice_slot, counts;
  double margin = 0;  // smallest gap between a token's best and second-best score

  GateRecord(const Graph& graph, OpId op, AssignmentCode code);
  GateRecord(const GateRecord&) = delete;
  GateRecord& operator=(const GateRecord&) = delete;

  /// Copies the op's outputs, and computes the margin of the scores with the gate's biases added.
  /// Called after the op, before other tensors may reuse the op's buffers. at(tensor) is the
  /// address of a tensor's values in memory of the CPU. T is the float type of the run.
  template <class T>
  void capture(const Graph& graph, OpId op, const std::function<const void*(TensorId)>& at);
};

/// Orders records by layer, then micro-batch, then part.
bool by_layer(const GateRecord* a, const GateRecord* b);

/// Returns a function that maps a gate op to the gate that this rank uses: the plan's routing
/// model, else the gate of `policies`, else the built-in gate that the op names. Called on the
/// thread that will call the gates.
std::function<Gate(const Op&)> gates_of(const Plan& plan, const Policies& policies, int64_t rank);

/// A rank's part of a router loss (balance or z loss) of the last step.
struct RouterLoss {
  int64_t layer = 0;
  bool is_z = false;
  double value = 0;
};

/// Combines the records and router losses of all ranks; each rank's are in any order. Returns one
/// entry per layer, ascending.
std::vector<MoeStats> moe_stats(const std::vector<std::vector<const GateRecord*>>& records,
                                const std::vector<std::vector<RouterLoss>>& losses);

}  // namespace moe
