#include "engine/passes/partition/cut_range.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/row_cut.h"
#include "engine/passes/moe_layer.h"

namespace moe {

RangeCutter::RangeCutter(const Graph& graph, std::span<const OpId> program, int64_t batch,
                         int64_t seq)
    : given_(graph),
      program_(program),
      batch_(batch),
      seq_(seq),
      graph_(graph),
      replaced_(graph.tensors().size()),
      producer_(graph.producers()),
      readers_(graph.tensors().size()),
      place_(graph.num_ops(), -1) {
  for (size_t i = 0; i < program.size(); ++i) place_[program[i].index()] = static_cast<int64_t>(i);
  for (const OpId op : graph.op_ids()) {
    for (const TensorId t : graph.op(op).inputs) {
      if (t.valid()) readers_[t.index()].push_back(op);
    }
  }
}

TensorId RangeCutter::now(TensorId old) const {
  return old.valid() && replaced_[old.index()].valid() ? replaced_[old.index()] : old;
}

struct RangeCutter::Parts {
  Parts(RangeCutter& c, const CutRange& range)
      : cutter(c),
        range(range),
        sizes(part_sizes(c.batch_, c.batch_, range.parts)),
        before(c.graph_.num_ops()) {
    for (size_t i = range.begin; i < range.end; ++i) {
      for (const TensorId t : given().op(c.program_[i]).outputs) made_by[t] = c.program_[i];
    }
  }

  std::vector<OpId> run() {
    for (size_t i = range.begin; i < range.end; ++i) {
      for (const TensorId t : given().op(op(i)).inputs) enter(t, op(i));
    }
    for (size_t begin = range.begin; begin < range.end;) {
      const size_t end = end_of_stage(begin);
      for (size_t p = 0; p < num(); ++p) {
        for (size_t i = begin; i < end; ++i) clone(op(i), p);
      }
      begin = end;
    }
    join_outputs();
    std::vector<OpId> made;
    for (size_t i = before; i < graph().num_ops(); ++i) made.emplace_back(static_cast<int64_t>(i));
    return made;
  }

  const Graph& given() const { return cutter.given_; }
  Graph& graph() const { return cutter.graph_; }
  OpId op(size_t i) const { return cutter.program_[i]; }
  size_t num() const { return sizes.size(); }
  int axis(TensorId t) const { return t.valid() ? range.axes.axis[t.index()] : kWhole; }

  size_t end_of_stage(size_t begin) const {
    size_t end = begin + 1;
    while (end < range.end && given().def(op(end)).lane == given().def(op(begin)).lane) ++end;
    return end;
  }

  /// Adds the ops that cut t, an input of `reader`, if t comes from outside the range and is cut
  /// along an axis or as row ends; does so only once per tensor.
  void enter(TensorId t, OpId reader) {
    if (axis(t) == kWhole || axis(t) == kRows || made_by.contains(t) || parts.contains(t)) return;
    if (axis(t) == kRowEnds) {
      count_again(t);
    } else {
      parts[t] = split(t, axis(t), given().op(reader));
    }
  }

  std::vector<TensorId> split(TensorId t, int at, const Op& reader) {
    const Tensor& tensor = given().tensor(t);
    const std::vector<int64_t> lengths =
        part_sizes(tensor.shape[static_cast<size_t>(at)], cutter.batch_, range.parts);
    Attrs attrs = {{"axis", int64_t{at}}, {"sizes", fmt::format("{}", fmt::join(lengths, ","))}};
    if (at == 0) attrs["view"] = int64_t{1};
    // The split of an op's second output could have the name of the second part of its first.
    std::string name = fmt::format("{}.split.{}", reader.name, tensor.name);
    if (graph().find_tensor(name).valid()) std::replace(name.begin(), name.end(), ':', '.');
    const OpId made = add_like(graph(), reader, ops::kSplit, name, {cutter.now(t)}, attrs);
    return graph().op(made).outputs;
  }

  /// Adds ops that count the used slots up to the end of each part, for a gate outside the range.
  void count_again(TensorId counts) {
    const OpId gate = cutter.producer_[counts.index()];
    MOE_CHECK(gate.valid() && is(given(), gate, MoeOp::kGate),
              "tensor '{}' is cut as row ends, so it must be the output 'counts' of a gate",
              given().tensor(counts).name);
    const Op& op = given().op(gate);
    const TensorId choice_slot = output_of(given(), op, Role::kChoiceSlot);
    if (!parts.contains(choice_slot)) parts[choice_slot] = split(choice_slot, 0, op);
    const Attrs attrs = {{"experts", num_elements(given().tensor(counts).shape)},
                         {"capacity", attr_int(op, "capacity")}};
    for (size_t p = 0; p < num(); ++p) {
      std::vector<TensorId> inputs{parts[choice_slot][p]};
      if (p > 0) inputs.push_back(parts[counts][p - 1]);
      const OpId made = add_like(graph(), op, ops::kCountPart,
                                 fmt::format("{}.count.p{}", op.name, p), inputs, attrs);
      graph().op(made).part = static_cast<int32_t>(p);
      parts[counts].push_back(graph().out(made));
    }
  }

  /// Returns the tensor that part p reads for input t.
  TensorId input(TensorId t, size_t p) {
    if (!t.valid()) return t;
    const auto found = parts.find(t);
    if (found == parts.end()) return cutter.now(t);
    MOE_CHECK(
        p < found->second.size(),
        "part {} of tensor '{}' is read, but only {} of its parts exist; the op that makes a part "
        "must be added before the part's readers",
        p, given().tensor(t).name, found->second.size());
    return found->second[p];
  }

  /// Adds the inputs that state the row at which part p begins, which is where part p - 1 ended.
  void add_begins(const Op& op, size_t p, std::vector<TensorId>& inputs) {
    for (const BeginInput& begin : given().def(op).begins) {
      const auto at = static_cast<size_t>(begin.input);
      TensorId end;
      if (begin.of_output >= 0) end = op.outputs[static_cast<size_t>(begin.of_output)];
      const auto of = static_cast<size_t>(begin.of_input);
      if (begin.of_input >= 0 && of < op.inputs.size()) end = op.inputs[of];
      if (p == 0 || axis(end) != kRowEnds) continue;
      if (inputs.size() <= at) inputs.resize(at + 1);
      inputs[at] = parts.at(end)[p - 1];
    }
  }

  bool counts_rows(const Op& op) const {
    const auto counted = [this](TensorId t) { return axis(t) == kRows || axis(t) == kRowEnds; };
    return std::any_of(op.inputs.begin(), op.inputs.end(), counted) ||
           std::any_of(op.outputs.begin(), op.outputs.end(), counted);
  }

  void clone(OpId id, size_t p) {
    const Op& op = given().op(id);
    std::vector<TensorId> inputs;
    for (const TensorId t : op.inputs) inputs.push_back(input(t, p));
    add_begins(op, p, inputs);
    Attrs attrs = all_attrs(op);
    if (counts_rows(op) && num() > 1) {
      attrs["share"] = static_cast<double>(sizes[p]) / static_cast<double>(cutter.batch_);
      attrs["first_token"] = first_row(p) * cutter.seq_;
    }
    const OpId made = add_like(graph(), op, given().def(op), fmt::format("{}.p{}", op.name, p),
                               std::move(inputs), std::move(attrs));
    graph().op(made).part = static_cast<int32_t>(p);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      graph().tensor(graph().out(made, i)).held = given().tensor(op.outputs[i]).held;
      parts[op.outputs[i]].push_back(graph().out(made, i));
      clone_of[op.outputs[i]].push_back({made, i});
    }
  }

  int64_t first_row(size_t p) const {
    int64_t first = 0;
    for (size_t q = 0; q < p; ++q) first += sizes[q];
    return first;
  }

  /// Joins the parts of each tensor that an op outside the range reads. The parts of rows (kRows)
  /// that only ops of the range read are joined as a view, so that they share one storage.
  void join_outputs() {
    for (size_t i = range.begin; i < range.end; ++i) {
      for (const TensorId t : given().op(op(i)).outputs) {
        const std::vector<OpId>& readers = cutter.readers_[t.index()];
        const auto outside = [this](OpId reader) { return !inside(reader); };
        if (std::any_of(readers.begin(), readers.end(), outside)) {
          cutter.replaced_[t.index()] = put_together(t, true);
        } else if (axis(t) == kRows && num() > 1) {
          put_together(t, false);
        }
      }
    }
  }

  bool inside(OpId id) const {
    const int64_t at = cutter.place_[id.index()];
    return at >= static_cast<int64_t>(range.begin) && at < static_cast<int64_t>(range.end);
  }

  TensorId put_together(TensorId t, bool read) {
    const std::vector<TensorId>& pieces = parts.at(t);
    const Op& op = given().op(made_by.at(t));
    if (axis(t) == kRowEnds || pieces.size() == 1) return pieces.back();
    OpId made;
    if (axis(t) == kRows) {
      std::vector<TensorId> inputs;
      for (const auto& [clone, output] : clone_of.at(t)) {
        inputs.push_back(given().def(op).rows_end(graph(), graph().op(clone), output));
      }
      inputs.insert(inputs.end(), pieces.begin(), pieces.end());
      Attrs attrs = {{"parts", static_cast<int64_t>(pieces.size())}};
      // Parts of a view are in the storage of its inputs, which are joined and cleared themselves.
      if (!read || is_view(given(), op)) attrs["view"] = int64_t{1};
      attrs.merge(attrs_of(ops::cut_of(op)));
      made = add_like(graph(), op, ops::kJoinRows, given().tensor(t).name + ".join", inputs, attrs);
    } else {
      Attrs attrs = {{"axis", int64_t{axis(t)}}};
      if (axis(t) == 0) attrs["view"] = int64_t{1};
      made = add_like(graph(), op, ops::kConcat, given().tensor(t).name + ".concat", pieces, attrs);
    }
    graph().tensor(graph().out(made)).held = given().tensor(t).held;
    return graph().out(made);
  }

  RangeCutter& cutter;
  const CutRange& range;
  std::vector<int64_t> sizes;  // samples of the batch in each part
  size_t before;               // number of ops in the graph before this call of cut()
  std::map<TensorId, OpId> made_by;
  std::map<TensorId, std::vector<TensorId>> parts;
  // For each tensor, the (op, output) that makes each of its parts.
  std::map<TensorId, std::vector<std::pair<OpId, size_t>>> clone_of;
};

std::vector<OpId> RangeCutter::cut(const CutRange& range) {
  MOE_CHECK(
      range.axes.found && range.begin < range.end && range.end <= program_.size(),
      "RangeCutter::cut: the range of ops [{}, {}) in a program of {} ops must have ops, all in "
      "the program, and CutRange::axes must be a solution that was found",
      range.begin, range.end, program_.size());
  return Parts(*this, range).run();
}

void RangeCutter::forget() {
  graph_.truncate(given_.num_ops(), given_.tensors().size());
  std::fill(replaced_.begin(), replaced_.end(), TensorId());
}

Graph RangeCutter::result(std::span<const CutRange> ranges,
                          std::span<const std::vector<OpId>> made) {
  std::map<OpId, size_t> first;  // the range that begins at this op
  std::vector<bool> cut(given_.num_ops());
  for (size_t r = 0; r < ranges.size(); ++r) {
    first[program_[ranges[r].begin]] = r;
    for (size_t i = ranges[r].begin; i < ranges[r].end; ++i) cut[program_[i].index()] = true;
  }
  std::vector<OpId> order;
  for (const OpId id : given_.op_ids()) {
    if (const auto at = first.find(id); at != first.end()) {
      order.insert(order.end(), made[at->second].begin(), made[at->second].end());
    }
    if (cut[id.index()]) continue;
    for (TensorId& t : graph_.op(id).inputs) t = now(t);
    order.push_back(id);
  }
  return with_order(graph_, order);
}

Nanoseconds pipeline_ns(const Graph& graph, std::span<const OpId> ops, const CostModel& cost) {
  std::map<TensorId, size_t> maker;
  std::map<LaneKind, Nanoseconds> free;  // when the last op of each kind of lane ends
  std::vector<Nanoseconds> ends;         // by place in `ops`
  for (const OpId id : ops) {
    const Op& op = graph.op(id);
    const LaneKind lane = graph.def(op).lane;
    Nanoseconds begin = free[lane], others = 0;
    for (const TensorId t : op.inputs) {
      const auto at = maker.find(t);
      if (at == maker.end()) continue;
      Nanoseconds& latest = graph.def(ops[at->second]).lane == lane ? begin : others;
      latest = std::max(latest, ends[at->second]);
    }
    if (others > begin) begin = others + cost.handoff_ns();
    for (const TensorId t : op.outputs) maker[t] = ends.size();
    free[lane] = checked_ns(begin + cost.op_ns(graph, id), [&] {
      return fmt::format("a range of the forward up to op '{}'", op.name);
    });
    ends.push_back(free[lane]);
  }
  return ends.empty() ? 0 : *std::max_element(ends.begin(), ends.end());
}

}  // namespace moe
