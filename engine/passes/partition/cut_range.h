// Cuts ranges of a program into parts of the batch and pipelines them by stages (Lancet, MLSys
// 2024, sections 5.2 and 5.3): clones of each op, a gate's parts chained by the places used,
// tensors cut at the range's start and put together at its end. Where it pays is range_search's
// business.
#pragma once

#include <span>
#include <vector>

#include "engine/cost/cost_model.h"
#include "engine/graph/graph.h"
#include "engine/passes/partition/axes.h"

namespace moe {

/// Ops [begin, end) of the program.
struct CutRange {
  size_t begin = 0, end = 0;
  int64_t parts = 1;
  AxisSolution axes;  // found, of an AxisSolver over the same program
};

class RangeCutter {
 public:
  /// program: the forward ops in program order. batch: rows of a rank; seq: tokens of a row.
  /// Requires: graph and program outlive the cutter.
  RangeCutter(const Graph& graph, std::span<const OpId> program, int64_t batch, int64_t seq);

  /// Adds the ops that take the range's place to graph() and returns them in their order: what
  /// cuts at the border; then stage by stage (a stage is a run of ops of one lane kind), in a stage
  /// part by part, so that the next part's transfer does not wait for this part's compute; then
  /// what puts together. Ranges are cut in program order and do not overlap.
  std::vector<OpId> cut(const CutRange& range);

  /// Drops all that cut() made.
  void forget();

  /// The graph so far: the given ops, and those that cut() made.
  const Graph& graph() const { return graph_; }

  /// The given graph with the ops of `made` in the place of each range. Requires: as cut() returned
  /// them.
  Graph result(std::span<const CutRange> ranges, std::span<const std::vector<OpId>> made);

 private:
  struct Parts;  // one call of cut()
  TensorId now(TensorId old) const;

  const Graph& given_;
  std::span<const OpId> program_;
  int64_t batch_, seq_;
  Graph graph_;
  std::vector<TensorId> replaced_;  // by tensor of the given graph: what stands for it now
  // Of the given graph: who makes and who reads each tensor, each op's place in the program or -1.
  std::vector<OpId> producer_;
  std::vector<std::vector<OpId>> readers_;
  std::vector<int64_t> place_;
};

/// How long these ops take as the event engine runs them: each lane kind in the order given, an op
/// after those of them that make its inputs. What is made elsewhere is there from the start.
Nanoseconds pipeline_ns(const Graph& graph, std::span<const OpId> ops, const CostModel& cost);

}  // namespace moe
