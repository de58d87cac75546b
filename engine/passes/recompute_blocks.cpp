// Recomputation of transformer blocks, or of parts of them (gradient checkpointing: Chen et al.
// 2016, arXiv 1604.06174; per block, and selective, as in Korthikanti et al. 2022, arXiv
// 2205.05198, section 5): the pass recompute.
#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "engine/graph/joined.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

bool is_integer(const Graph& graph, TensorId t) {
  return graph.tensor(t).dtype == DType::kI32;
}

/// Whether the op belongs to the forward of a block and may run again, with the same results and
/// without a further effect.
bool may_run_again(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  const bool exchanges_rows = def.payload == Payload::kRows || def.payload == Payload::kActivations;
  return op.phase == Phase::kForward && op.layer >= 0 && def.lane != LaneKind::kHost &&
         def.loss == Loss::kNone && (def.collective == Collective::kNone || exchanges_rows) &&
         mutated_inputs(graph, op).empty() &&
         std::none_of(op.outputs.begin(), op.outputs.end(),
                      [&](TensorId t) { return is_integer(graph, t); });
}

/// A name in `what`, and whether an op's outputs are made again by it.
struct Part {
  std::string_view name;
  bool (*has)(const OpDef& def, const Op& op);
};
constexpr std::array kParts = {
    Part{"blocks", [](const OpDef&, const Op&) { return true; }},
    Part{"norms", [](const OpDef& def,
                     const Op&) { return &def == &ops::kRmsnorm || &def == &ops::kLayernorm; }},
    Part{"activations",
         [](const OpDef& def, const Op&) { return &def == &ops::kSiluMul || &def == &ops::kGelu; }},
    Part{"attention",
         [](const OpDef& def, const Op&) {
           return place_of(def.inputs, Role::kQuery).has_value() ||
                  std::string_view(def.name).starts_with("attn_");
         }},
    Part{"experts", [](const OpDef&, const Op& op) {
           return op.segment == Segment::kDispatch || op.segment == Segment::kExpert ||
                  op.segment == Segment::kCombine;
         }}};

/// Returns whether `what` names the part.
bool names(std::string_view what, std::string_view part) {
  for (size_t begin = 0; begin < what.size();) {
    const size_t end = std::min(what.find('+', begin), what.size());
    if (what.substr(begin, end - begin) == part) return true;
    begin = end + 1;
  }
  return false;
}

/// Returns the graph with each view of the forward right after the last op that makes one of its
/// inputs. A view that joins the parts of a cut keeps their storage in use until the view's place,
/// which may be in the backward, although the backward reads the parts that are made again.
Graph with_early_views(const Graph& graph) {
  const std::vector<OpId> producer = graph.producers();
  std::vector<size_t> place(graph.num_ops());  // of a view: the op that it follows
  std::vector<std::vector<OpId>> at(graph.num_ops());
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    place[i] = i;
    const OpId id(static_cast<int64_t>(i));
    if (graph.removed(id)) continue;
    const Op& op = graph.op(id);
    if (op.phase == Phase::kForward && is_view(graph, op)) {
      place[i] = 0;
      for (const TensorId t : op.inputs) {
        const OpId made = t.valid() ? producer[t.index()] : OpId();
        if (made.valid()) place[i] = std::max(place[i], place[made.index()]);
      }
    }
    at[place[i]].push_back(id);
  }
  std::vector<OpId> order;
  for (const std::vector<OpId>& ops : at) order.insert(order.end(), ops.begin(), ops.end());
  return with_order(graph, order);
}

/// The state of one call of recompute_blocks.
class Recomputation {
 public:
  Recomputation(const Graph& graph, const std::string& what)
      : given_(graph),
        what_(what),
        graph_(graph),
        producer_(graph.producers()),
        joined_(graph),
        dropped_(graph.tensors().size()),
        runs_again_(graph.num_ops()) {}

  Graph run() {
    drop();
    OpId first;  // of the ops of one block that follow each other in the backward
    for (const OpId id : given_.op_ids()) {
      const Op& op = given_.op(id);
      if (op.phase != Phase::kBackward) {
        first = OpId();
        continue;
      }
      if (!first.valid() || given_.op(first).layer != op.layer) first = id;
      for (const TensorId t : op.inputs) {
        if (!t.valid() || !dropped_[t.index()]) continue;
        backward_.try_emplace(op.layer, first);
        make_again(t);
      }
    }
    return with_order(graph_, order());
  }

 private:
  /// Sets dropped_: the tensors of these parts of blocks' forward except those that are kept.
  void drop() {
    for (size_t t = 0; t < dropped_.size(); ++t) {
      if (!producer_[t].valid()) continue;
      const Op& op = given_.op(producer_[t]);
      dropped_[t] = may_run_again(given_, op) &&
                    std::any_of(kParts.begin(), kParts.end(), [&](const Part& part) {
                      return names(what_, part.name) && part.has(given_.def(op), op);
                    });
    }
    for (const Op& op : given_.ops()) {
      for (const TensorId t : op.inputs) {
        if (t.valid() && dropped_[t.index()] && layer_of(t) != op.layer)
          dropped_[t.index()] = false;
      }
    }
    for (const JoinedTensors::Group& group : joined_.groups) {
      const bool all = std::all_of(group.members.begin(), group.members.end(),
                                   [this](TensorId t) { return dropped_[t.index()]; });
      for (const TensorId t : group.members) dropped_[t.index()] = all;
    }
  }

  int32_t layer_of(TensorId t) const { return given_.op(producer_[t.index()]).layer; }

  /// Lets the op run again that makes t, and those that make what this op reads. Tensors that share
  /// their storage with t are made again with it, so that they share that of its clone.
  void make_again(TensorId t) {
    std::vector<TensorId> open{t};
    while (!open.empty()) {
      const TensorId next = open.back();
      open.pop_back();
      if (!dropped_[next.index()] || runs_again_[producer_[next.index()].index()]) continue;
      runs_again_[producer_[next.index()].index()] = true;
      const Op& op = given_.op(producer_[next.index()]);
      for (const TensorId input : op.inputs) {
        if (input.valid()) open.push_back(input);
      }
      for (const TensorId output : op.outputs) {
        const int32_t group = joined_.group_of[output.index()];
        if (group < 0) continue;
        const std::vector<TensorId>& members = joined_.groups[static_cast<size_t>(group)].members;
        open.insert(open.end(), members.begin(), members.end());
      }
    }
  }

  /// Adds the ops that run again, and returns the order of all ops.
  std::vector<OpId> order() {
    std::map<int32_t, std::vector<OpId>> clones;  // by block
    for (size_t i = 0; i < runs_again_.size(); ++i) {
      const OpId id(static_cast<int64_t>(i));
      if (runs_again_[i]) clones[given_.op(id).layer].push_back(clone(given_.op(id)));
    }
    std::vector<OpId> order;
    for (const OpId id : given_.op_ids()) {
      Op& op = graph_.op(id);
      const auto begin = backward_.find(op.layer);
      if (begin != backward_.end() && begin->second == id) {
        const std::vector<OpId>& before = clones[op.layer];
        order.insert(order.end(), before.begin(), before.end());
      }
      if (op.phase == Phase::kBackward) read_again(op);
      order.push_back(id);
    }
    return order;
  }

  OpId clone(Op op) {
    op.name += ".again";
    op.phase = Phase::kRecompute;
    read_again(op);
    for (TensorId& t : op.outputs) {
      Tensor tensor = given_.tensor(t);
      tensor.name += ".again";
      again_[t] = graph_.add_tensor(std::move(tensor));
      t = again_[t];
    }
    return graph_.append(std::move(op));
  }

  void read_again(Op& op) const {
    for (TensorId& t : op.inputs) {
      if (t.valid() && dropped_[t.index()]) t = again_.at(t);
    }
  }

  const Graph& given_;
  const std::string what_;
  Graph graph_;
  std::vector<OpId> producer_;
  JoinedTensors joined_;
  std::vector<bool> dropped_;         // indexed by tensor: it is not kept for the backward
  std::vector<bool> runs_again_;      // indexed by op
  std::map<int32_t, OpId> backward_;  // by block: where its backward begins
  std::map<TensorId, TensorId> again_;
};

}  // namespace

/// Lets the backward of each block read activations that are made again instead of kept. what: of
/// the whole block ("blocks"), or joined by "+" what norms, activation functions and attention
/// give ("norms", "activations", "attention"), and all between router and residual ("experts").
/// The ops of the forward that make them, up to the block's inputs, are added once more right
/// before the block's backward: phase recompute, names "<op>.again" and "<tensor>.again", otherwise
/// equal. Of a block's forward the following is kept:
///   * what ops outside the block read: the outputs of a block are the next one's inputs;
///   * outputs of ops that must not run twice: those that make integers (choices, counts, row ends,
///     placements), losses, ops on a host lane, that overwrite a tensor, or of a collective other
///     than an exchange of rows;
///   * what shares its storage with one of these, or with a parameter.
/// Exchanges of rows do run again. Every block is treated alike, also the last, as in Megatron-LM:
/// what the head's backward leaves in memory is not part of any block. Requires: the whole step,
/// after all passes that edit the graph. The losses and gradients do not change.
Graph recompute_blocks(Graph graph, const PassContext& context) {
  const std::string& what = std::get<std::string>(context.options.at("what"));
  const Graph early = with_early_views(graph);
  return Recomputation(early, what).run();
}

}  // namespace moe
