// OffloadedExperts: what Lina's inference makes of one batch in a plan that has it: the placements
// of both phases by the very functions of the ops' kernels, the experts that each device copies
// from host memory, and the records that CPU ranks keep of the same batch. Not here: time.
#pragma once

#include <optional>
#include <vector>

#include "engine/cost/cost_model.h"
#include "engine/exec/executor.h"
#include "engine/sim/routed_step.h"

namespace moe {

class OffloadedExperts {
 public:
  /// Keeps a reference to the graph.
  OffloadedExperts(const Graph& graph, const std::vector<MoeLayer>& layers);

  /// Takes a batch: kept rows of all ranks and what was estimated (no mass: nothing), by MoE layer;
  /// the placements of layers whose experts are offloaded go to `in_force`.
  void place(const std::vector<ExpertCounts>& kept, const std::vector<Estimate>& estimates,
             std::vector<Placement>& in_force);

  // Of the batch taken last.

  /// By layer whose experts are offloaded.
  const std::vector<OffloadRecord>& records() const { return records_; }
  /// Null for other ops. Stays where it is until place().
  const RoutedWork* routed_work(OpId op, int32_t rank) const;
  /// All ranks copy equally many experts.
  bool alike() const { return alike_; }
  /// Ops whose work the routing changes.
  const std::vector<OpId>& ops() const { return ops_; }
  /// Layers of the paths that the plan estimates by; nullopt: it estimates nothing.
  std::optional<int64_t> path() const { return path_; }

 private:
  /// Its ops; invalid: it has none.
  struct Layer {
    size_t number = 0;  // of MoE layers
    OpId place, tune, load, load_again;
  };
  void place(const Layer& layer, const ExpertCounts& kept, const Estimate& estimate,
             Placement& in_force);
  void set_copies(OpId op, const Placement& placement, const Placement* before);

  const Graph& graph_;
  std::vector<Layer> layers_;
  std::vector<OpId> ops_;
  std::optional<int64_t> path_;
  std::vector<std::vector<RoutedWork>> works_;  // by op, then rank, or none
  std::vector<OffloadRecord> records_;
  bool alike_ = true;
};

}  // namespace moe
