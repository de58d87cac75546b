// P(i,n,k) of Lancet's dynamic programme: how long a range of the forward takes whole or in k
// parts. A range is really cut and timed by the event engine; ranges that are alike (the same
// layer, again and again) are timed once.
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
  /// program: the forward ops in program order; batch: rows of a rank; seq: tokens of a row.
  /// Requires: graph, program and cost outlive this.
  RangeTimes(const Graph& graph, std::span<const OpId> program, int64_t batch, int64_t seq,
             const CostModel& cost);

  /// Ops [begin, end) of the program in so many parts; nothing when they cannot be cut so.
  std::optional<Nanoseconds> ns(size_t begin, size_t end, int64_t parts);
  /// The cut itself; axes.found tells whether there is one.
  CutRange cut(size_t begin, size_t end, int64_t parts);
  /// Whether the ops hold a transfer.
  bool has_transfer(size_t begin, size_t end) const { return transfers_[end] > transfers_[begin]; }

  /// "84 evaluated; 99 axis problems, 36 search nodes".
  std::string counts() const;

 private:
  using Key = std::array<uint64_t, 2>;
  Key key_of(size_t begin, size_t end, int64_t parts) const;

  /// What an op reads: the place in the program of who made it (none: -1), which output of it, and
  /// the tensor.
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
  // By place in the program.
  std::vector<size_t> classes_;           // ops of one class take equally long
  std::vector<std::vector<Read>> reads_;  // inputs that are there
  std::vector<size_t> read_until_;  // the last reader of what the op makes; size: one elsewhere
  std::vector<size_t> transfers_;   // comm ops before it; one more at the end
  std::map<Key, std::optional<Nanoseconds>> known_;
  int64_t num_evaluated_ = 0, num_solved_ = 0, num_nodes_ = 0;
};

}  // namespace moe
