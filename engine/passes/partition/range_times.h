// P(i,n,k) of Lancet's dynamic programme: the time that a range of the forward takes uncut or in k
// parts. A range is really cut and timed by the event engine; equal ranges (the same layer, again
// and again) are timed once. Which ranges to cut is decided in range_search.h.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cost/cost_model.h"
#include "engine/passes/partition/axes.h"
#include "engine/passes/partition/cut_range.h"

namespace moe {

class RangeTimes {
 public:
  /// program: the forward ops in program order. batch: samples per rank. seq: tokens of a sample
  /// per rank.
  /// Requires: graph, program and cost outlive this object.
  RangeTimes(const Graph& graph, std::span<const OpId> program, int64_t batch, int64_t seq,
             const CostModel& cost);

  /// Returns the time of ops [begin, end) in `parts` parts; nullopt when that cut is impossible.
  std::optional<Nanoseconds> ns(size_t begin, size_t end, int64_t parts);
  /// Returns the cut; its field axes.found states whether one exists.
  CutRange cut(size_t begin, size_t end, int64_t parts);
  /// Returns whether ops [begin, end) contain a transfer.
  bool has_transfer(size_t begin, size_t end) const { return transfers_[end] > transfers_[begin]; }

  /// Returns the statistics as text, such as "84 evaluated; 99 axis problems, 36 search nodes".
  std::string counts() const;

 private:
  using Key = std::array<uint64_t, 2>;
  Key key_of(size_t begin, size_t end, int64_t parts) const;

  /// An input of an op: the number in the program of the op that made it (-1 when made elsewhere),
  /// the number of that op's output, and the tensor.
  struct Read {
    int64_t place;
    size_t output;
    TensorId tensor;
  };

  const Graph& graph_;
  std::span<const OpId> program_;
  const CostModel& cost_;
  AxisSolver solver_;
  RangeCutter trial_;
  // All indexed by number in the program.
  std::vector<size_t> classes_;           // ops of one class take equally long
  std::vector<std::vector<Read>> reads_;  // inputs that exist
  /// Number of the last reader of the op's outputs; the size of the program when a reader is
  /// elsewhere.
  std::vector<size_t> read_until_;
  /// Number of comm ops before this op; one more entry at the end.
  std::vector<size_t> transfers_;
  std::map<Key, std::optional<Nanoseconds>> known_;
  int64_t num_evaluated_ = 0, num_solved_ = 0, num_nodes_ = 0;
};

}  // namespace moe
