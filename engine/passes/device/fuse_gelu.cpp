#include "engine/passes/device/fuse_gelu.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/graph/op_def.h"
#include "engine/passes/moe_layer.h"

namespace moe {
namespace {

/// Returns whether the op can contain GELU: one of its operands exists only with attr gelu=1.
bool takes_gelu(const std::vector<Operand>& operands) {
  return std::any_of(operands.begin(), operands.end(), [](const Operand& operand) {
    return operand.with != nullptr && operand.with == std::string_view("gelu");
  });
}

/// Returns whether both ops have the same attributes about the rows that they take.
bool same_rows(const Op& a, const Op& b) {
  return a.rows == b.rows &&
         attr_string(a, "rows", "capacity") == attr_string(b, "rows", "capacity") &&
         attr_int(a, "first_token") == attr_int(b, "first_token");
}

class Forward {
 public:
  explicit Forward(Graph& graph)
      : graph_(graph), producer_(graph.producers()), readers_(readers_of(graph)) {}

  /// Fuses all pairs that can be fused; returns whether the graph has changed.
  bool run() {
    for (const OpId id : graph_.op_ids()) {
      if (!is(graph_, id, BasicOp::kGelu) || !fits(id)) continue;
      gelu_of_[producer_[graph_.op(id).inputs[0].index()]] = id;
      fused_.insert(id);
    }
    while (drop_one()) continue;
    for (const auto& [product, gelu] : gelu_of_) fuse(product, gelu);
    return !gelu_of_.empty();
  }

 private:
  TensorId input(const Op& op, Role role) const { return input_of(graph_, op, role); }

  bool fits(OpId gelu) const {
    const Op& g = graph_.op(gelu);
    const OpId maker = producer_[g.inputs[0].index()];
    if (!maker.valid() || !takes_gelu(graph_.def(maker).outputs)) return false;
    if (gelu_of_.contains(maker)) return false;
    const Op& op = graph_.op(maker);
    const TensorId bias = input(g, Role::kBias);
    // The number of axes that a bias of the product has: one less than its weights.
    const size_t axes = graph_.tensor(op.inputs[1]).shape.size() - 1;
    return op.outputs.size() == 1 && !input(op, Role::kBias).valid() &&
           !input(op, Role::kAdded).valid() && same_rows(op, g) &&
           input(op, Role::kRecvCounts) == input(g, Role::kRecvCounts) &&
           input(op, Role::kRecvBegin) == input(g, Role::kRecvBegin) &&
           (!bias.valid() || graph_.tensor(bias).shape.size() == axes);
  }

  /// Removes from gelu_of_ one pair of product and GELU whose bias cannot move into the product;
  /// returns false when there is none.
  /// Called again until it returns false, because removing one pair can make another one
  /// impossible. If two pairs depend on each other and one must go, the other goes too.
  bool drop_one() {
    for (const auto& [product, gelu] : gelu_of_) {
      const TensorId bias = input(graph_.op(gelu), Role::kBias);
      if (!bias.valid() || takes_bias(graph_.out(product), bias)) continue;
      fused_.erase(gelu);
      gelu_of_.erase(product);
      return true;
    }
    return false;
  }

  /// Returns whether the product may add the bias to its sum t: all readers of t must be fused, add
  /// the same bias themselves, or join t with sums to which the same applies.
  bool takes_bias(TensorId t, TensorId bias) const {
    const std::vector<OpId>& readers = readers_[t.index()];
    return std::all_of(readers.begin(), readers.end(), [&](OpId reader) {
      if (fused_.contains(reader) || adds_bias(reader, t, bias)) return true;
      const TensorId whole = joined_by(reader, t);
      return whole.valid() && all_take(reader, whole, bias) && takes_bias(whole, bias);
    });
  }

  bool adds_bias(OpId reader, TensorId t, TensorId bias) const {
    const Op& op = graph_.op(reader);
    return is(graph_, reader, BasicOp::kGeluDx) && op.inputs[0] != t &&
           input(op, Role::kSum) == t && input(op, Role::kBias) == bias;
  }

  /// Returns the tensor into which `reader` joins t; invalid when `reader` joins no tensors.
  TensorId joined_by(OpId reader, TensorId t) const {
    for (const Piece& piece : pieces(graph_, graph_.op(reader))) {
      if (piece.piece == t) return piece.whole;
    }
    return {};
  }

  bool all_take(OpId joiner, TensorId whole, TensorId bias) const {
    const std::vector<Piece> all = pieces(graph_, graph_.op(joiner));
    return std::all_of(all.begin(), all.end(), [&](const Piece& piece) {
      const auto made = gelu_of_.find(producer_[piece.piece.index()]);
      return piece.whole == whole && made != gelu_of_.end() &&
             input(graph_.op(made->second), Role::kBias) == bias;
    });
  }

  void fuse(OpId product, OpId gelu) {
    const Op g = graph_.op(gelu);
    Op& op = graph_.op(product);
    const TensorId bias = input(g, Role::kBias);
    if (bias.valid()) {
      set_input(graph_, product, Role::kBias, bias);
      forget_bias(op.outputs[0]);
    }
    op.attrs["gelu"] = int64_t{1};
    op.outputs.push_back(g.outputs[0]);
    graph_.remove(gelu);
  }

  void forget_bias(TensorId t) {
    for (const OpId reader : readers_[t.index()]) {
      if (graph_.removed(reader) || fused_.contains(reader)) continue;
      if (const TensorId whole = joined_by(reader, t); whole.valid()) {
        forget_bias(whole);
        continue;
      }
      set_input(graph_, reader, Role::kBias, TensorId());
    }
  }

  Graph& graph_;
  const std::vector<OpId> producer_;
  const std::vector<std::vector<OpId>> readers_;
  std::map<OpId, OpId> gelu_of_;  // the gelu op of each product
  std::set<OpId> fused_;          // the gelu ops in gelu_of_
};

class Backward {
 public:
  explicit Backward(Graph& graph)
      : graph_(graph), producer_(graph.producers()), readers_(readers_of(graph)) {}

  /// Fuses all pairs that can be fused; returns whether the graph has changed.
  bool run() {
    bool changed = false;
    for (const OpId id : graph_.op_ids()) {
      if (!is(graph_, id, BasicOp::kGeluDx) || !fits(id)) continue;
      fuse(producer_[graph_.op(id).inputs[0].index()], id);
      changed = true;
    }
    return changed;
  }

 private:
  TensorId input(const Op& op, Role role) const { return input_of(graph_, op, role); }

  bool fits(OpId gelu) const {
    const Op& g = graph_.op(gelu);
    const OpId maker = producer_[g.inputs[0].index()];
    if (!maker.valid() || !takes_gelu(graph_.def(maker).inputs)) return false;
    if (input(g, Role::kBias).valid()) return false;
    const Op& op = graph_.op(maker);
    const Tensor &made = graph_.tensor(op.outputs[0]), &wanted = graph_.tensor(g.outputs[0]);
    return readers_[op.outputs[0].index()].size() == 1 && !input(op, Role::kAdded).valid() &&
           !input(op, Role::kSum).valid() && same_rows(op, g) &&
           input(op, Role::kRecvCounts) == input(g, Role::kRecvCounts) &&
           made.shape == wanted.shape && made.dtype == wanted.dtype &&
           before(input(g, Role::kSum), maker);
  }

  /// Returns whether t exists before `op` begins. The fused op takes the place of `op`.
  bool before(TensorId t, OpId op) const {
    const OpId made = producer_[t.index()];
    return !made.valid() || made < op;
  }

  void fuse(OpId product, OpId gelu) {
    const Op& g = graph_.op(gelu);
    Op& op = graph_.op(product);
    set_input(graph_, product, Role::kSum, input(g, Role::kSum));
    op.attrs["gelu"] = int64_t{1};
    op.outputs[0] = g.outputs[0];
    graph_.remove(gelu);
  }

  Graph& graph_;
  const std::vector<OpId> producer_;
  const std::vector<std::vector<OpId>> readers_;
};

}  // namespace

Graph fuse_gelu(Graph graph) {
  // A product may come before the op that makes GELU's bias (for example where experts' slots are
  // joined); compact() restores a valid order.
  if (Forward(graph).run()) graph = compact(graph);
  if (Backward(graph).run()) graph = compact(graph);
  return graph;
}

}  // namespace moe
