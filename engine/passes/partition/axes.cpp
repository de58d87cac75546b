#include "engine/passes/partition/axes.h"

#include <algorithm>
#include <bit>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/row_cut.h"
#include "engine/passes/moe_layer.h"

namespace moe {
namespace {

/// Conversion between a value (kRowEnds, kRows, kWhole, axis 0...) and its bit in a set.
constexpr size_t value_of(int axis) {
  return static_cast<size_t>(axis - kRowEnds);
}
constexpr int axis_of(size_t value) {
  return static_cast<int>(value) + kRowEnds;
}
constexpr uint32_t bit(int axis) {
  return 1u << value_of(axis);
}

template <class Visit>
void for_each_bit(uint64_t bits, const Visit& visit) {
  for (; bits != 0; bits &= bits - 1) visit(static_cast<size_t>(std::countr_zero(bits)));
}

/// Returns a set of values (bits) in words: "whole", "along axis 0 or 1", "along axis 1 or as rows
/// of slots".
std::string ways_text(uint32_t values) {
  std::string text, axes;
  const auto add = [&text](const std::string& way) { text += (text.empty() ? "" : " or ") + way; };
  if ((values & bit(kWhole)) != 0) add("whole");
  for_each_bit(values >> value_of(0), [&axes](size_t axis) {
    axes += fmt::format("{}{}", axes.empty() ? "along axis " : " or ", axis);
  });
  if (!axes.empty()) add(axes);
  if ((values & bit(kRows)) != 0) add("as rows of slots");
  if ((values & bit(kRowEnds)) != 0) add("as row ends");
  return text;
}

std::string op_text(const Graph& graph, OpId id) {
  return fmt::format("op '{}' ({})", graph.op(id).name, graph.def(id).name);
}

/// Calls visit(tensor, axis) for every input that exists and for every output.
template <class Visit>
void for_each_place(const Op& op, const AxisTuple& tuple, const Visit& visit) {
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (op.inputs[i].valid()) visit(op.inputs[i], tuple.inputs[i]);
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) visit(op.outputs[i], tuple.outputs[i]);
}

void check_tuple(const Graph& graph, const Op& op, const AxisTuple& tuple) {
  MOE_CHECK(
      tuple.inputs.size() >= op.inputs.size() && tuple.outputs.size() == op.outputs.size(),
      "op '{}': OpDef::axes returns a way with {} inputs and {} outputs, but must have at least {} "
      "inputs and exactly {} outputs",
      op.name, tuple.inputs.size(), tuple.outputs.size(), op.inputs.size(), op.outputs.size());
  for_each_place(op, tuple, [&](TensorId t, int axis) {
    const Tensor& tensor = graph.tensor(t);
    MOE_CHECK(axis >= kRowEnds && axis < static_cast<int>(tensor.shape.size()),
              "op '{}': OpDef::axes cuts axis {} of tensor '{}' {}, which has no such axis",
              op.name, axis, tensor.name, shape_text(tensor.shape));
  });
  MOE_CHECK(std::any_of(tuple.outputs.begin(), tuple.outputs.end(),
                        [](int axis) { return axis != kWhole; }),
            "op '{}': OpDef::axes returns a way that cuts no output, but each way must cut one",
            op.name);
}

/// Returns whether a way to cut fits the op: a tensor that it has twice gets one value, and axes
/// are cut at the same places (their lengths are equal or whole numbers of samples).
bool fits(const Graph& graph, const Op& op, const AxisTuple& tuple, int64_t batch) {
  bool good = true;
  int64_t first = 0;
  for_each_place(op, tuple, [&](TensorId t, int axis) {
    for_each_place(op, tuple, [&](TensorId u, int other) { good &= t != u || axis == other; });
    if (axis < 0) return;
    const int64_t length = graph.tensor(t).shape[static_cast<size_t>(axis)];
    if (first == 0) first = length;
    good &= length == first || (length % batch == 0 && first % batch == 0);
  });
  return good;
}

}  // namespace

std::vector<int64_t> even_sizes(int64_t total, int64_t parts) {
  std::vector<int64_t> sizes(static_cast<size_t>(parts), total / parts);
  for (int64_t i = 0; i < total % parts; ++i) ++sizes[static_cast<size_t>(i)];
  return sizes;
}

std::vector<int64_t> part_sizes(int64_t length, int64_t batch, int64_t parts) {
  if (length % batch != 0) return even_sizes(length, parts);
  std::vector<int64_t> sizes = even_sizes(batch, parts);
  for (int64_t& size : sizes) size *= length / batch;
  return sizes;
}

AxisSolver::AxisSolver(const Graph& graph, std::span<const OpId> ops, int64_t batch)
    : graph_(graph),
      batch_(batch),
      made_(graph.tensors().size()),
      touching_(graph.tensors().size()) {
  MOE_CHECK(batch > 0, "AxisSolver: batch = {} samples per rank, but must be at least 1", batch);
  for (const OpId id : graph.op_ids()) {
    for (const TensorId t : graph.op(id).outputs) {
      made_[t.index()].by_op = true;
      made_[t.index()].by_gate = is(graph, id, MoeOp::kGate);
    }
  }
  for (const OpId id : ops) {
    const size_t at = tables_.size();
    tables_.push_back(table_of(id));
    for (const TensorId t : tables_.back().tensors) {
      touching_[t.index()].push_back(static_cast<uint32_t>(at));
    }
    for (const TensorId t : graph.op(id).outputs) {
      MOE_CHECK(
          touching_[t.index()].front() == at,
          "AxisSolver: op '{}' comes after a reader of its output in the program, but must come "
          "before all readers",
          graph.op(id).name);
      made_[t.index()].at = static_cast<int64_t>(at);
    }
  }
}

/// Whether the op is a part that has a slice of the tensors, unlike a part along the rows in use.
bool AxisSolver::is_slice(const Op& op) const {
  return op.part >= 0 && !ops::is_row_part(graph_, op);
}

AxisSolver::Table AxisSolver::table_of(OpId id) const {
  const Op& op = graph_.op(id);
  Table table;
  table.op = id;
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (const TensorId t : *list) {
      const auto& known = table.tensors;
      if (t.valid() && std::find(known.begin(), known.end(), t) == known.end()) {
        table.tensors.push_back(t);
      }
    }
  }
  if (graph_.def(op).axes == nullptr || is_slice(op)) return table;
  const std::vector<AxisTuple> tuples = graph_.def(op).axes(graph_, op);
  table.num_rules = tuples.size();
  MOE_CHECK(tuples.size() <= 64,
            "op '{}': OpDef::axes returns {} ways to cut the op, but must return at most 64",
            op.name, tuples.size());
  table.supporters.resize(table.tensors.size() * kNumValues);
  for (size_t i = 0; i < tuples.size(); ++i) {
    check_tuple(graph_, op, tuples[i]);
    if (!fits(graph_, op, tuples[i], batch_)) continue;
    const uint64_t way = uint64_t{1} << i;
    table.ways |= way;
    for_each_place(op, tuples[i], [&](TensorId t, int axis) {
      const auto at = std::find(table.tensors.begin(), table.tensors.end(), t);
      const auto k = static_cast<size_t>(at - table.tensors.begin());
      MOE_CHECK(value_of(axis) < kNumValues,
                "op '{}': OpDef::axes cuts axis {}, allowed: axes 0 to 12", op.name, axis);
      table.supporters[k * kNumValues + value_of(axis)] |= way;
    });
  }
  return table;
}

/// The search for one range that grows op by op. It keeps what is still possible: the values of
/// each tensor and the ways of each op.
class AxisSearch {
 public:
  AxisSearch(const AxisSolver& solver, size_t begin, int64_t parts, AxisSolution& counts)
      : solver_(solver),
        begin_(begin),
        end_(begin),
        parts_(parts),
        left_(solver.made_.size()),
        counts_(counts) {}

  /// Adds the ops before number `end` of the program to the range, one by one. Returns the number
  /// of the op with which some op of the range has no way left; `end` if there is no such op.
  size_t grow(size_t end) {
    while (end_ < end) {
      const AxisSolver::Table& table = solver_.tables_[end_];
      for (const TensorId t : table.tensors) {
        if (left_[t.index()] == 0) left_[t.index()] = limits(t);
      }
      ways_.push_back(table.ways);
      queued_.push_back(false);
      enqueue(end_++);
      if (!propagate()) return end_ - 1;
    }
    return end;
  }

  /// Searches for the first solution that is still possible, by choosing a way to cut each op from
  /// number `at` on. Returns whether there is a solution; if so, left() has its values.
  bool dive(size_t at) {
    while (at < end_ && std::has_single_bit(ways_[at - begin_])) ++at;
    if (at == end_) return true;
    for (uint64_t ways = ways_[at - begin_]; ways != 0; ways &= ways - 1) {
      ++counts_.nodes;
      const size_t mark = trail_.size();
      set_ways(at, uint64_t{1} << std::countr_zero(ways));
      enqueue(at);
      if (propagate() && dive(at + 1)) return true;
      undo(mark);
    }
    return false;
  }

  /// The values that are still possible for a tensor; 0 when no op of the range has it.
  uint32_t left(TensorId t) const { return left_[t.index()]; }

  /// The values that a tensor may have, regardless of the ops that use it.
  uint32_t limits(TensorId t) const {
    const Shape& shape = solver_.graph_.tensor(t).shape;
    uint32_t values = bit(kWhole);
    for (size_t a = 0; a < shape.size(); ++a) {
      if (shape[a] >= parts_) values |= bit(static_cast<int>(a));
    }
    const AxisSolver::Source& source = solver_.made_[t.index()];
    const bool inside = source.at >= static_cast<int64_t>(begin_);
    if (inside || source.by_op) values |= bit(kRows);
    if (inside || source.by_gate) values |= bit(kRowEnds);
    return values;
  }

 private:
  struct Change {
    bool of_op;
    size_t index;
    uint64_t before;
  };

  void set_ways(size_t at, uint64_t ways) {
    trail_.push_back({true, at - begin_, ways_[at - begin_]});
    ways_[at - begin_] = ways;
  }

  void set_left(TensorId t, uint32_t values, size_t by) {
    trail_.push_back({false, t.index(), left_[t.index()]});
    left_[t.index()] = values;
    for (const uint32_t at : solver_.touching_[t.index()]) {
      if (at >= end_) break;
      if (at >= begin_ && at != by) enqueue(at);
    }
  }

  void undo(size_t mark) {
    for (; trail_.size() > mark; trail_.pop_back()) {
      const Change& change = trail_.back();
      if (change.of_op) {
        ways_[change.index] = change.before;
      } else {
        left_[change.index] = static_cast<uint32_t>(change.before);
      }
    }
  }

  void enqueue(size_t at) {
    if (queued_[at - begin_]) return;
    queued_[at - begin_] = true;
    queue_.push_back(at);
  }

  bool propagate() {
    bool good = true;
    for (size_t i = 0; i < queue_.size(); ++i) {
      queued_[queue_[i] - begin_] = false;
      good = good && revise(queue_[i]);
    }
    queue_.clear();
    return good;
  }

  /// Arc consistency of one op: removes the ways that need a value which is no longer possible,
  /// then the values that no remaining way needs.
  bool revise(size_t at) {
    ++counts_.propagations;
    const AxisSolver::Table& table = solver_.tables_[at];
    uint64_t ways = ways_[at - begin_];
    for (size_t k = 0; k < table.tensors.size() && ways != 0; ++k) {
      uint64_t with = 0;
      for_each_bit(left(table.tensors[k]), [&](size_t value) { with |= table.at(k, value); });
      ways &= with;
    }
    if (ways == 0) return false;
    if (ways != ways_[at - begin_]) set_ways(at, ways);
    for (size_t k = 0; k < table.tensors.size(); ++k) {
      const uint32_t before = left(table.tensors[k]);
      uint32_t after = 0;
      for_each_bit(before, [&](size_t value) {
        if ((table.at(k, value) & ways) != 0) after |= 1u << value;
      });
      if (after != before) set_left(table.tensors[k], after, at);
    }
    return true;
  }

  const AxisSolver& solver_;
  size_t begin_, end_;
  int64_t parts_;
  std::vector<uint32_t> left_;  // a set of values, indexed by tensor
  std::vector<uint64_t> ways_;  // a set of ways, indexed by op of the range
  std::vector<uint8_t> queued_;
  std::vector<size_t> queue_;
  std::vector<Change> trail_;
  AxisSolution& counts_;
};

AxisSolution AxisSolver::solve(size_t begin, size_t end, int64_t parts) const {
  MOE_CHECK(
      begin <= end && end <= tables_.size() && parts > 0,
      "AxisSolver::solve: begin = {}, end = {}, parts = {}, but must be begin <= end <= {} (ops in "
      "the program) and parts >= 1",
      begin, end, parts, tables_.size());
  AxisSolution solution;
  if (batch_ < parts) {
    solution.why = fmt::format("a batch of {} samples cannot be cut into {} parts", batch_, parts);
    return solution;
  }
  AxisSearch search(*this, begin, parts, solution);
  const size_t grown = search.grow(end);
  if (grown == end && search.dive(begin)) {
    solution.found = true;
    solution.axis.assign(made_.size(), kWhole);
    for (size_t at = begin; at < end; ++at) {
      for (const TensorId t : tables_[at].tensors) {
        solution.axis[t.index()] = axis_of(static_cast<size_t>(std::countr_zero(search.left(t))));
      }
    }
    return solution;
  }
  // Binary search; ops [begin, sure) can be cut, ops [begin, refused + 1) cannot.
  size_t sure = begin, refused = std::min(grown, end - 1);
  for (size_t probe = refused; sure < refused; probe = sure + (refused - sure + 1) / 2) {
    AxisSearch shorter(*this, begin, parts, solution);
    if (shorter.grow(probe) == probe && shorter.dive(begin)) {
      sure = probe;
    } else {
      refused = probe - 1;
    }
  }
  solution.refused = tables_[refused].op;
  solution.why = explain(begin, refused, parts);
  return solution;
}

std::string AxisSolver::explain(size_t begin, size_t refused, int64_t parts) const {
  const Table& table = tables_[refused];
  const std::string who = op_text(graph_, table.op);
  if (is_slice(graph_.op(table.op))) return who + " is already one part of a cut op";
  if (graph_.def(table.op).axes == nullptr) return who + " cannot be cut";
  if (table.num_rules == 0) return who + " needs the whole batch";
  if (table.ways == 0) {
    return fmt::format(
        "{} has axes that would not be cut at the same places when the batch has {} samples", who,
        batch_);
  }
  AxisSolution counts;
  AxisSearch before(*this, begin, parts, counts);
  before.grow(refused);
  std::string reasons;
  const uint64_t ways = ways_within(table, before, reasons);
  if (ways == 0) return fmt::format("{} cannot be cut into {} parts: {}", who, parts, reasons);
  return explain_conflict(begin, table, ways, before);
}

/// Returns the ways of an op that its tensors allow, regardless of other ops; `reasons` gets why
/// the other ways are impossible.
uint64_t AxisSolver::ways_within(const Table& table, const AxisSearch& search,
                                 std::string& reasons) const {
  uint64_t ways = table.ways;
  for (size_t k = 0; k < table.tensors.size(); ++k) {
    const uint32_t allowed = search.limits(table.tensors[k]);
    const Tensor& tensor = graph_.tensor(table.tensors[k]);
    for (size_t value = 0; value < kNumValues; ++value) {
      if ((allowed >> value & 1) != 0 || (table.at(k, value) & ways) == 0) continue;
      ways &= ~table.at(k, value);
      const int axis = axis_of(value);
      const std::string reason =
          axis < 0 ? fmt::format("cannot be taken {}, since no {} makes it", ways_text(1u << value),
                                 axis == kRowEnds ? "gate" : "op")
                   : fmt::format("{} has only {} along axis {}", shape_text(tensor.shape),
                                 tensor.shape[static_cast<size_t>(axis)], axis);
      reasons += fmt::format("{}'{}' {}", reasons.empty() ? "" : "; ", tensor.name, reason);
    }
  }
  return ways;
}

/// Explains how an op that may be cut in `ways` conflicts with the ops before it in the range.
std::string AxisSolver::explain_conflict(size_t begin, const Table& table, uint64_t ways,
                                         const AxisSearch& before) const {
  const std::string who = op_text(graph_, table.op);
  std::string shared;
  for (size_t k = 0; k < table.tensors.size(); ++k) {
    const TensorId t = table.tensors[k];
    const uint32_t given = before.left(t);
    if (given == 0) continue;
    uint32_t wanted = 0;
    for (size_t value = 0; value < kNumValues; ++value) {
      if ((table.at(k, value) & ways) != 0) wanted |= 1u << value;
    }
    const std::string& name = graph_.tensor(t).name;
    if ((given & wanted) == 0) {
      const auto& touching = touching_[t.index()];
      const uint32_t first = *std::lower_bound(touching.begin(), touching.end(), begin);
      const bool makes = made_[t.index()].at == static_cast<int64_t>(first);
      return fmt::format("{} takes '{}' {}, but in this range {} {} it {}", who, name,
                         ways_text(wanted), op_text(graph_, tables_[first].op),
                         makes ? "gives" : "takes", ways_text(given));
    }
    shared += fmt::format("{}'{}' {}", shared.empty() ? "" : ", ", name, ways_text(given));
  }
  return fmt::format("{} cannot be cut in agreement with the ops before it: {}", who, shared);
}

}  // namespace moe
