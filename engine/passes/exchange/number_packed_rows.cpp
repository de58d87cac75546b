#include <algorithm>
#include <map>

#include "engine/base/errors.h"
#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/rules.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// The slots of one part of the batch, or of the whole batch, as a gate numbers them and packed.
struct Part {
  TensorId choice_slot, ends, begins;
  int64_t first_token = 0;
  TensorId packed_choice_slot, packed_slot_choice;
};

/// The state of one call of number_packed_rows.
class Numbering {
 public:
  explicit Numbering(const Graph& graph)
      : given_(graph), graph_(graph), producer_(graph.producers()) {
    for (const Op& op : graph.ops()) {
      if (op.kind.valid()) note_part_before(op);
    }
    note_exchanged_parts();
  }

  Graph run() {
    std::map<int32_t, OpId> dispatches;  // by block: the last dispatch, that of the last part
    for (const OpId id : given_.op_ids()) {
      if (is(given_, id, MoeOp::kDispatch) && given_.op(id).rows.stored > 0) {
        dispatches[given_.op(id).layer] = id;
      }
    }
    if (dispatches.empty()) return given_;
    for (const auto& [block, dispatch] : dispatches) number(block, given_.op(dispatch));
    return with_order(graph_, order());
  }

 private:
  /// Remembers which row end comes before which, in the order of the parts.
  void note_part_before(const Op& op) {
    for (const BeginInput& begin : given_.def(op).begins) {
      const auto at = static_cast<size_t>(begin.input);
      if (begin.of_input < 0 || at >= op.inputs.size() || !op.inputs[at].valid()) continue;
      before_[op.inputs[static_cast<size_t>(begin.of_input)]] = op.inputs[at];
    }
  }

  /// Does the same for the row ends at the experts, as the exchange of counts makes them: where no
  /// op behind it is cut, no op reads one of them as the end of the part before.
  void note_exchanged_parts() {
    std::map<TensorId, TensorId> received;  // by the counts that are sent
    for (const Op& op : given_.ops()) {
      if (op.kind.valid() && given_.def(op).payload == Payload::kCounts) {
        received[op.inputs[0]] = op.outputs[0];
      }
    }
    for (const auto& [counts, made] : received) {
      const auto before = before_.find(counts);
      if (before == before_.end() || !received.contains(before->second)) continue;
      before_.try_emplace(made, received.at(before->second));
    }
  }

  /// Returns the row ends of all parts up to `last`, in order.
  std::vector<TensorId> parts_up_to(TensorId last) const {
    std::vector<TensorId> ends{last};
    for (auto at = before_.find(last); at != before_.end(); at = before_.find(at->second)) {
      ends.push_back(at->second);
    }
    std::reverse(ends.begin(), ends.end());
    return ends;
  }

  /// Whether the op has rows that are packed.
  bool on_packed_rows(const Op& op) const {
    const auto packed = [this](TensorId t) {
      return t.valid() && given_.tensor(t).dtype != DType::kI32 && given_.tensor(t).stored_rows > 0;
    };
    return std::any_of(op.inputs.begin(), op.inputs.end(), packed) ||
           std::any_of(op.outputs.begin(), op.outputs.end(), packed);
  }

  void number(int32_t block, const Op& dispatch) {
    std::vector<OpId> readers;
    for (const OpId id : given_.op_ids()) {
      const Op& op = given_.op(id);
      if (op.layer == block && on_packed_rows(op)) readers.push_back(id);
    }
    parts_.clear();
    whole_choice_slot_ = whole_slot_choice_ = TensorId();
    const std::vector<TensorId> ends = parts_up_to(last_ends(dispatch, readers));
    for (const TensorId end : ends) add_part(end, dispatch, ends.size() > 1);
    for (const OpId id : readers) renumber(id);
  }

  /// Returns the row end of the layer's last part, or the counts of the whole batch. The dispatch
  /// itself need not be cut if only ops after it are.
  TensorId last_ends(const Op& dispatch, const std::vector<OpId>& readers) const {
    const TensorId counts = input_of(given_, dispatch, Role::kCounts);
    TensorId last = counts;
    for (const OpId id : readers) {
      const TensorId ends = input_of(given_, given_.op(id), Role::kCounts);
      if (!ends.valid() || given_.tensor(ends).shape != given_.tensor(counts).shape) continue;
      const OpId maker = producer_[ends.index()];
      const bool of_tokens =
          is(given_, maker, MoeOp::kGate) || &given_.def(maker) == &ops::kCountPart;
      if (of_tokens && parts_up_to(ends).size() > parts_up_to(last).size()) last = ends;
    }
    return last;
  }

  /// Adds a pack_slots op for the tokens that the gate or count_part behind `ends` counts; without
  /// several parts, for those whose slots the dispatch reads: that may be the whole batch behind a
  /// gate in parts.
  void add_part(TensorId ends, const Op& dispatch, bool one_of_several) {
    OpId maker = producer_[ends.index()];
    Part part{.ends = ends};
    if (one_of_several) {
      const Op& counter = given_.op(maker);
      part.begins = input_of(given_, counter, Role::kUsedBefore);
      part.choice_slot = is(given_, maker, MoeOp::kGate)
                             ? output_of(given_, counter, Role::kChoiceSlot)
                             : input_of(given_, counter, Role::kChoiceSlot);
    } else {
      part.choice_slot = input_of(given_, dispatch, Role::kChoiceSlot);
      maker = producer_[part.choice_slot.index()];
    }
    const Op& counter = given_.op(maker);
    if (!parts_.empty()) {
      const Part& before = parts_.back();
      part.first_token = before.first_token + given_.tensor(before.choice_slot).shape[0];
    }
    const Shape& slots = given_.tensor(output_of(given_, dispatch, Role::kSlots)).shape;
    const int64_t stored = dispatch.rows.stored;
    Attrs attrs = {{"experts", slots[0]}, {"capacity", slots[1]}, {"stored", stored}};
    if (one_of_several) {
      const auto choices = num_elements(given_.tensor(part.choice_slot).shape);
      attrs["first_token"] = part.first_token;
      attrs["share"] = static_cast<double>(choices) / static_cast<double>(stored);
    }
    const OpId made = add(ops::kPackSlots, counter, fmt::format("{}.pack", counter.name),
                          {part.choice_slot, ends, part.begins}, attrs, maker);
    graph_.op(made).part = counter.part;
    part.packed_choice_slot = graph_.out(made, 0);
    part.packed_slot_choice = graph_.out(made, 1);
    parts_.push_back(part);
  }

  /// Adds an op that runs right after op `after`, or after the ops added there before.
  OpId add(const OpDef& kind, const Op& of, std::string name, std::vector<TensorId> inputs,
           Attrs attrs, OpId after) {
    const OpId made =
        add_like(graph_, of, kind, std::move(name), std::move(inputs), std::move(attrs));
    behind_[after].push_back(made);
    return made;
  }

  void renumber(OpId id) {
    const Op& op = given_.op(id);
    const TensorId choice_slot = input_of(given_, op, Role::kChoiceSlot);
    const Part* const part = part_of(choice_slot);
    if (choice_slot.valid()) set_input(graph_, id, Role::kChoiceSlot, packed(choice_slot));
    if (input_of(given_, op, Role::kSlotChoice).valid()) {
      set_input(graph_, id, Role::kSlotChoice,
                part != nullptr ? part->packed_slot_choice : whole_slot_choice());
    }
    if (ops::is_part(op) || is(given_, id, MoeOp::kDispatch)) return;
    for (const Role role : {Role::kCounts, Role::kRecvCounts}) {
      for (TensorId& t : graph_.op(id).inputs) {
        const auto at = static_cast<size_t>(&t - graph_.op(id).inputs.data());
        if (t.valid() && input_operand(given_.def(op), op, at)->role == role) t = of_all_parts(t);
      }
    }
  }

  const Part* part_of(TensorId choice_slot) const {
    const auto found = std::find_if(parts_.begin(), parts_.end(),
                                    [=](const Part& p) { return p.choice_slot == choice_slot; });
    return found == parts_.end() ? nullptr : &*found;
  }

  /// Returns the packed numbers of the slots in `choice_slot`: those of a part, of the whole batch,
  /// or of tokens that are split off because only a combine is cut.
  TensorId packed(TensorId choice_slot) {
    if (const Part* const part = part_of(choice_slot)) return part->packed_choice_slot;
    const OpId maker = producer_[choice_slot.index()];
    if (&given_.def(maker) != &ops::kSplit) return whole_choice_slot();
    const Op& split = given_.op(maker);
    if (!splits_.contains(maker)) {
      const TensorId whole = packed(split.inputs[0]);
      splits_[maker] =
          add(ops::kSplit, split, split.name + ".packed", {whole}, all_attrs(split), maker);
    }
    const auto at = std::find(split.outputs.begin(), split.outputs.end(), choice_slot);
    return graph_.out(splits_[maker], static_cast<size_t>(at - split.outputs.begin()));
  }

  OpId last_part() const { return producer_[parts_.back().ends.index()]; }

  TensorId whole_choice_slot() {
    if (whole_choice_slot_.valid()) return whole_choice_slot_;
    if (parts_.size() == 1) return whole_choice_slot_ = parts_[0].packed_choice_slot;
    std::vector<TensorId> pieces;
    for (const Part& part : parts_) pieces.push_back(part.packed_choice_slot);
    const Op& of = given_.op(last_part());
    return whole_choice_slot_ =
               graph_.out(add(ops::kConcat, of, fmt::format("b{}.packed_choice_slot", of.layer),
                              pieces, {{"axis", int64_t{0}}, {"view", int64_t{1}}}, last_part()));
  }

  TensorId whole_slot_choice() {
    if (whole_slot_choice_.valid()) return whole_slot_choice_;
    if (parts_.size() == 1) return whole_slot_choice_ = parts_[0].packed_slot_choice;
    std::vector<TensorId> inputs;
    for (const Part& part : parts_) inputs.push_back(part.ends);
    for (const Part& part : parts_) inputs.push_back(part.packed_slot_choice);
    const Op& of = given_.op(last_part());
    return whole_slot_choice_ = graph_.out(
               add(ops::kJoinRows, of, fmt::format("b{}.packed_slot_choice", of.layer), inputs,
                   {{"parts", static_cast<int64_t>(parts_.size())}}, last_part()));
  }

  /// Returns the row ends of all parts, one after the other, for an op on the whole batch that
  /// reads the counts of the whole batch.
  TensorId of_all_parts(TensorId counts) {
    // A dispatch before the cut ops still reads the gate's own counts.
    const bool of_gate = is(given_, producer_[counts.index()], MoeOp::kGate);
    std::vector<TensorId> ends = parts_up_to(of_gate ? parts_.back().ends : counts);
    if (ends.size() == 1 && !stacked_.contains(counts)) ends = exchanged_by_part(counts);
    if (stacked_.contains(ends.back())) return stacked_.at(ends.back());
    if (ends.size() == 1) return counts;
    const OpId after = producer_[ends.back().index()];
    return stacked_[ends.back()] = graph_.out(
               add(ops::kConcat, given_.op(after), given_.tensor(ends.back()).name + ".parts", ends,
                   {{"axis", int64_t{0}}, {"view", int64_t{1}}}, after));
  }

  /// Returns the row ends of all parts where an exchange of counts that is not cut has only those
  /// of the last, which are the counts of the whole batch, although its gate is cut.
  std::vector<TensorId> exchanged_by_part(TensorId counts) {
    const OpId maker = producer_[counts.index()];
    if (!carries(given_, maker, Payload::kCounts)) return {counts};
    const Op& exchange = given_.op(maker);
    std::vector<TensorId> ends = parts_up_to(exchange.inputs[0]);
    for (size_t p = 0; p + 1 < ends.size(); ++p) {
      ends[p] = graph_.out(add(ops::kExchangeCounts, exchange,
                               fmt::format("{}.of_part{}", exchange.name, p), {ends[p]},
                               all_attrs(exchange), maker));
    }
    ends.back() = counts;
    return ends;
  }

  std::vector<OpId> order() const {
    std::vector<OpId> order;
    for (const OpId id : given_.op_ids()) {
      order.push_back(id);
      const auto added = behind_.find(id);
      if (added != behind_.end())
        order.insert(order.end(), added->second.begin(), added->second.end());
    }
    return order;
  }

  const Graph& given_;
  Graph graph_;
  std::vector<OpId> producer_;
  std::map<TensorId, TensorId> before_;   // for the row end of a part: that of the part before
  std::map<TensorId, TensorId> stacked_;  // by the last row end: the row ends of all parts
  std::map<OpId, std::vector<OpId>> behind_;
  std::map<OpId, OpId> splits_;  // by the split of a gate's slots: that of the packed slots
  std::vector<Part> parts_;      // of the layer at hand
  TensorId whole_choice_slot_, whole_slot_choice_;
};

}  // namespace

/// Gives the slots of packed rows their numbers: adds a pack_slots op after each gate, or, in a
/// layer that is cut along the batch, after the op that counts the rows of a part. Ops on the whole
/// batch get the counts of all parts. Called after all passes that cut ops.
Graph number_packed_rows(Graph graph, const PassContext&) {
  return Numbering(graph).run();
}

}  // namespace moe
