// Along which axes a range of ops may be cut into parts: one value per tensor, equal at its producer
// and at all readers within the range, so that every op is cut in one of the ways that its
// OpDef::axes allows (Lancet, MLSys 2024, section 5.1). What comes from outside the range is cut at
// its border, what leaves it is put together there. Not here: the cutting, and whether it pays.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace moe {

/// `total` in `parts` lengths that differ by at most one, the longer ones first.
std::vector<int64_t> even_sizes(int64_t total, int64_t parts);

/// The lengths of the parts of an axis. A multiple of the batch (B, or T = B * S) is cut between
/// samples, so that [B,S,h] and [T,..] are cut at the same places; others evenly.
std::vector<int64_t> part_sizes(int64_t length, int64_t batch, int64_t parts);

struct AxisProblem {
  const Graph& graph;
  std::span<const OpId> ops;  // a contiguous run of the program, in program order
  int64_t batch;              // samples of this rank, B
  int64_t parts;              // 1 or more
};

struct AxisSolution {
  bool found = false;
  /// By tensor of the graph, an axis, kRows, kRowEnds or kWhole (not cut, or not in the range);
  /// empty when nothing is found.
  std::vector<int> axis;
  /// The first op with which the range, grown from its first op, cannot be cut, and the reason.
  /// Invalid where the batch itself is too short.
  OpId refused;
  std::string why;
  int64_t nodes = 0;         // ways of an op that were tried where there was a choice
  int64_t propagations = 0;  // visits to an op that took over what is left of its tensors
};

class AxisSearch;

/// The solver for all ranges of one program; it may be used by many threads. A tensor that is cut
/// along an axis has at least `parts` along it. One that comes from outside the range may also be
/// taken as rows unless it is a parameter, state or input, and as row ends if a gate made it (which
/// can count again, part by part).
/// Growing a range at its end, or raising `parts`, only adds constraints: a range that is refused
/// at some op stays so.
class AxisSolver {
 public:
  /// Requires: `ops` in program order; the graph outlives the solver and does not change.
  AxisSolver(const Graph& graph, std::span<const OpId> ops, int64_t batch);

  /// Cuts ops [begin, end) of the program. Of all solutions the first, comparing op by op in
  /// program order which of its ways (OpDef::axes, preferred first) each takes.
  AxisSolution solve(size_t begin, size_t end, int64_t parts) const;

 private:
  friend class AxisSearch;
  static constexpr size_t kNumValues = 16;  // kRowEnds, kRows, kWhole, axis 0 to 12

  /// The ways to cut one op, as sets: bit i is way i.
  struct Table {
    OpId op;
    size_t num_rules = 0;              // ways that the rule of the op lists
    uint64_t ways = 0;                 // those of them that fit its tensors
    std::vector<TensorId> tensors;     // of the op, each once
    std::vector<uint64_t> supporters;  // [tensor][value]: the ways that cut the tensor so
    uint64_t at(size_t tensor, size_t value) const {
      return supporters[tensor * kNumValues + value];
    }
  };
  struct Source {
    int64_t at = -1;  // the op of the program that makes the tensor
    bool by_op = false, by_gate = false;
  };

  Table table_of(OpId id) const;
  std::string explain(size_t begin, size_t refused, int64_t parts) const;
  uint64_t ways_within(const Table& table, const AxisSearch& search, std::string& reasons) const;
  std::string explain_conflict(size_t begin, const Table& table, uint64_t ways,
                               const AxisSearch& before) const;

  const Graph& graph_;
  int64_t batch_;
  std::vector<Table> tables_;                    // by op of the program
  std::vector<Source> made_;                     // by tensor
  std::vector<std::vector<uint32_t>> touching_;  // by tensor: ops of the program, ascending
};

AxisSolution solve_axes(const AxisProblem& problem);

}  // namespace moe
