// Cuts ranges of a program into parts of the batch that run as a pipeline (Lancet, MLSys 2024,
// sections 5.2 and 5.3): every op is cloned for each part, the parts of a gate hand on
// the slots used so far, and tensors are split at the start of the range and joined at its end.
// Invariant: the given graph is not changed. Which ranges are worth cutting is decided in
// range_search.h, not here.
#pragma once

#include <span>
#include <vector>

#include "engine/cost/cost_model.h"
#include "engine/graph/graph.h"
#include "engine/passes/partition/axes.h"

namespace moe {

/// Ops [begin, end) of the program, to be cut into `parts` parts.
struct CutRange {
  size_t begin = 0, end = 0;
  int64_t parts = 1;
  AxisSolution axes;  // a solution that an AxisSolver found for the same program
};

class RangeCutter {
 public:
  /// program: the forward ops in program order. batch: samples per rank. seq: tokens of a sample
  /// per rank.
  /// Requires: graph and program outlive the cutter.
  RangeCutter(const Graph& graph, std::span<const OpId> program, int64_t batch, int64_t seq);

  /// Adds to graph() the ops that replace the range, and returns them in their order: first the ops
  /// that split at the border; then run by run (consecutive ops of one lane kind are a run), and
  /// within a run part by part, so that the transfer of the next part does not wait for the
  /// compute of this part; finally the ops that join. Call it with ranges in program order that do
  /// not overlap.
  std::vector<OpId> cut(const CutRange& range);

  /// Removes all ops that cut() added.
  void forget();

  /// The graph so far: the given ops and those that cut() added.
  const Graph& graph() const { return graph_; }

  /// Returns the given graph in which the ops `made` replace each range. Requires: `made` holds
  /// what cut() returned for these ranges.
  Graph result(std::span<const CutRange> ranges, std::span<const std::vector<OpId>> made);

 private:
  struct Parts;  // the state of one call of cut()
  TensorId now(TensorId old) const;

  const Graph& given_;
  std::span<const OpId> program_;
  int64_t batch_, seq_;
  Graph graph_;
  /// Indexed by tensor of the given graph: the tensor that replaces it.
  std::vector<TensorId> replaced_;
  // Of the given graph: producer and readers of each tensor, and the number of each op in the
  // program (-1 when it is not in it).
  std::vector<OpId> producer_;
  std::vector<std::vector<OpId>> readers_;
  std::vector<int64_t> place_;
};

/// Returns the time that these ops take in the event engine. Each lane kind runs its ops in the
/// order given, and an op begins after the given ops that make its inputs; other inputs are
/// available from the start.
Nanoseconds pipeline_ns(const Graph& graph, std::span<const OpId> ops, const CostModel& cost);

}  // namespace moe
