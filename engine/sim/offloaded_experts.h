// OffloadedExperts: the inference of the paper Lina, whose experts are offloaded to host memory,
// simulated for one batch. Computes the placements of both phases (phase 1 places experts by their
// estimated popularity before the gate, phase 2 corrects that placement after it) with the same
// functions that the kernels of the ops call, the number of experts that each device copies from
// host memory, and the OffloadRecords that CPU ranks would keep of the same batch. Times are not
// here but in StepReplay.
#pragma once

#include <vector>

#include "engine/cost/cost_model.h"
#include "engine/exec/executor.h"
#include "engine/sim/routed_step.h"

namespace moe {

class OffloadedExperts {
 public:
  /// `holders`: as of RoutedStep. Keeps a reference to the graph.
  OffloadedExperts(const Graph& graph, const Group& holders, const std::vector<MoeLayer>& layers);

  /// Places the experts for a batch. All arguments are indexed by MoE layer. `kept`: rows of all
  /// ranks that found a slot. `estimates`: the estimated popularity of the experts; an Estimate
  /// whose `mass` is empty or all 0 means that nothing was estimated. Writes the placements
  /// of layers with offloaded experts to `in_force`.
  void place(const std::vector<ExpertCounts>& kept, const std::vector<Estimate>& estimates,
             std::vector<Placement>& in_force);

  // The following describe the batch of the last call of place().

  /// One record per layer with offloaded experts.
  const std::vector<OffloadRecord>& records() const { return records_; }
  /// Returns the work of an op in ops() on `rank`; null for other ops. Valid until the next
  /// place().
  const RoutedWork* routed_work(OpId op, int32_t rank) const;
  /// Whether all ranks copy the same number of experts from host memory.
  bool alike() const { return alike_; }
  /// Ops whose work depends on the placements: phase 2, and copying experts from host memory.
  const std::vector<OpId>& ops() const { return ops_; }
  /// Whether the plan estimates popularity.
  bool estimates() const { return estimates_; }

 private:
  /// The ops of a layer; an invalid id where the layer has no such op. `place` is phase 1, `tune`
  /// is phase 2, `load` copies experts from host memory, `load_again` does so after phase 2.
  struct Layer {
    size_t number = 0;  // index of the layer among the MoE layers
    OpId place, tune, load, load_again;
  };
  void place(const Layer& layer, const ExpertCounts& kept, const Estimate& estimate,
             Placement& in_force);
  void set_copies(OpId op, const Placement& placement, const Placement* before);

  const Graph& graph_;
  const Group holders_;
  std::vector<Layer> layers_;
  std::vector<OpId> ops_;
  bool estimates_ = false;
  std::vector<std::vector<RoutedWork>> works_;  // [op][rank]; empty for ops that are not in ops_
  std::vector<OffloadRecord> records_;
  bool alike_ = true;
};

}  // namespace moe
