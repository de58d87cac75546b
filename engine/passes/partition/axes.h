// Finds the axes along which a range of ops can be cut into parts. Invariant: each tensor has one
// value (an axis or a special value), the same at its producer and at all readers within the range,
// so that every op is cut in one of the ways that its OpDef::axes allows (Lancet, MLSys 2024,
// section 5.1). Tensors that enter the range are split at its border, tensors that leave it are
// joined there. Cutting is in cut_range.h; whether it pays, in range_search.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace moe {

/// Divides `total` into `parts` lengths that differ by at most one, the longer ones first.
std::vector<int64_t> even_sizes(int64_t total, int64_t parts);

/// Returns the lengths of the parts of an axis. An axis whose length is a multiple of the batch (B,
/// or T = B * S) is cut between samples, so that [B,S,h] and [T,..] are cut at the same places; any
/// other axis is cut evenly.
std::vector<int64_t> part_sizes(int64_t length, int64_t batch, int64_t parts);

struct AxisSolution {
  bool found = false;
  /// For each tensor of the graph an axis, kRows, kRowEnds or kWhole; kWhole means not cut, or not
  /// in the range. Empty when found is false.
  std::vector<int> axis;
  /// The op that cannot be cut when the range grows op by op from its first op, and the reason.
  /// `refused` is invalid when the batch has fewer samples than there are parts.
  OpId refused;
  std::string why;
  int64_t nodes = 0;         // ways that were tried at ops with several possible ways
  int64_t propagations = 0;  // times that an op's ways were compared with the values of its tensors
};

class AxisSearch;

/// The solver for all ranges of one program; several threads may use it at once. A tensor that is
/// cut along an axis must have a length of at least `parts` there. A tensor that enters the range
/// may also be taken as rows (kRows in graph/op_def.h), unless it is a parameter, state or input of
/// the program, and as row ends (kRowEnds) if a gate made it (its rows can be counted again for
/// each part). Extending a range at its end, or raising `parts`, only adds constraints: a range
/// that is refused at some op remains refused.
class AxisSolver {
 public:
  /// Requires: `ops` are in program order; the graph outlives the solver and does not change.
  AxisSolver(const Graph& graph, std::span<const OpId> ops, int64_t batch);

  /// Finds a cut of ops [begin, end) of the program. Of all solutions it returns the first one,
  /// comparing op by op in program order the number of the way that the op takes (OpDef::axes lists
  /// the preferred ways first).
  AxisSolution solve(size_t begin, size_t end, int64_t parts) const;

 private:
  friend class AxisSearch;
  static constexpr size_t kNumValues = 16;  // kRowEnds, kRows, kWhole, axis 0 to 12

  /// The ways to cut one op. Sets of ways are bit masks: bit i is way i of OpDef::axes.
  struct Table {
    OpId op;
    size_t num_rules = 0;              // ways that OpDef::axes lists
    uint64_t ways = 0;                 // the listed ways that fit the op's tensors
    std::vector<TensorId> tensors;     // tensors of the op, each listed once
    std::vector<uint64_t> supporters;  // [tensor][value]: the ways that give the tensor this value
    uint64_t at(size_t tensor, size_t value) const {
      return supporters[tensor * kNumValues + value];
    }
  };
  struct Source {
    int64_t at = -1;  // number of the op in the program that makes the tensor
    bool by_op = false, by_gate = false;
  };

  bool is_slice(const Op& op) const;
  Table table_of(OpId id) const;
  std::string explain(size_t begin, size_t refused, int64_t parts) const;
  uint64_t ways_within(const Table& table, const AxisSearch& search, std::string& reasons) const;
  std::string explain_conflict(size_t begin, const Table& table, uint64_t ways,
                               const AxisSearch& before) const;

  const Graph& graph_;
  int64_t batch_;
  std::vector<Table> tables_;  // indexed by op of the program
  std::vector<Source> made_;   // indexed by tensor
  /// Indexed by tensor: numbers of its ops in the program, ascending.
  std::vector<std::vector<uint32_t>> touching_;
};

}  // namespace moe
