#include "engine/passes/fuse_gelu.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/graph/op_def.h"
#include "engine/passes/moe_layer.h"

namespace moe {
namespace {

constexpr size_t kNone = 16;  // no op here has so many inputs

// Inputs of gelu (x, bias, counts, begin) and of gelu_dx (dy, x, bias, counts).
constexpr size_t kBias = 1, kCounts = 2, kBegin = 3;
constexpr size_t kDxSum = 1, kDxBias = 2, kDxCounts = 3;

// Inputs of the products, after x or dy and w: a bias or an accumulator, and these.
constexpr size_t kAdded = 2;
struct Product {
  std::string_view kind;
  size_t residual, counts, begin;
};
constexpr Product kForward[] = {{"linear", 3, kNone, kNone}, {"expert_linear", kNone, 3, 4}};
struct ProductDx {
  std::string_view kind;
  size_t counts, sum;
};
constexpr ProductDx kBackward[] = {{"linear_dx", kNone, 3}, {"expert_linear_dx", 3, 4}};

TensorId input(const Op& op, size_t i) {
  return i < op.inputs.size() ? op.inputs[i] : TensorId();
}

/// What the ops say of the rows that they take.
bool same_rows(const Op& a, const Op& b) {
  const std::pair<const char*, AttrValue> usual[] = {{"rows", std::string("capacity")},
                                                     {"loose", int64_t{0}},
                                                     {"occupancy", 1.0},
                                                     {"share", 0.0},
                                                     {"first_token", int64_t{0}}};
  return std::all_of(std::begin(usual), std::end(usual), [&](const auto& attribute) {
    const auto value = [&](const Op& op) {
      const auto found = op.attrs.find(attribute.first);
      return found == op.attrs.end() ? attribute.second : found->second;
    };
    return value(a) == value(b);
  });
}

template <class Row, size_t n>
const Row* row_of(const Row (&rows)[n], const Graph& graph, OpId op) {
  const auto row = std::find_if(std::begin(rows), std::end(rows), [&](const Row& r) {
    return op.valid() && is_kind(graph, op, r.kind);
  });
  return row == std::end(rows) ? nullptr : row;
}

class Forward {
 public:
  explicit Forward(Graph& graph)
      : graph_(graph), producer_(graph.producers()), readers_(readers_of(graph)) {}

  /// Returns whether anything has changed.
  bool run() {
    for (size_t i = 0; i < graph_.num_ops(); ++i) {
      const OpId id(static_cast<int64_t>(i));
      if (!graph_.removed(id) && is_kind(graph_, id, "gelu") && fits(id)) {
        gelu_of_[producer_[graph_.op(id).inputs[0].index()]] = id;
        fused_.insert(id);
      }
    }
    while (drop_one()) continue;
    for (const auto& [product, gelu] : gelu_of_) fuse(product, gelu);
    return !gelu_of_.empty();
  }

 private:
  bool fits(OpId gelu) const {
    const Op& g = graph_.op(gelu);
    const OpId maker = producer_[g.inputs[0].index()];
    const Product* const product = row_of(kForward, graph_, maker);
    if (product == nullptr || gelu_of_.contains(maker)) return false;
    const Op& op = graph_.op(maker);
    const TensorId bias = input(g, kBias);
    const size_t axes = graph_.tensor(op.inputs[1]).shape.size() - 1;  // of a bias of the product
    return op.outputs.size() == 1 && !input(op, kAdded).valid() &&
           !input(op, product->residual).valid() && same_rows(op, g) &&
           input(op, product->counts) == input(g, kCounts) &&
           input(op, product->begin) == input(g, kBegin) &&
           (!bias.valid() || graph_.tensor(bias).shape.size() == axes);
  }

  /// Of two that stand in each other's way none may stay, so this is asked until all may.
  bool drop_one() {
    for (const auto& [product, gelu] : gelu_of_) {
      const TensorId bias = input(graph_.op(gelu), kBias);
      if (!bias.valid() || takes_bias(graph_.out(product), bias)) continue;
      fused_.erase(gelu);
      gelu_of_.erase(product);
      return true;
    }
    return false;
  }

  /// The sum t may have the bias in it.
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
    return is_kind(graph_, reader, "gelu_dx") && op.inputs[0] != t && op.inputs[kDxSum] == t &&
           input(op, kDxBias) == bias;
  }

  /// What the op joins t into; invalid: it does something else.
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
             input(graph_.op(made->second), kBias) == bias;
    });
  }

  void fuse(OpId product, OpId gelu) {
    const Op g = graph_.op(gelu);
    Op& op = graph_.op(product);
    const TensorId bias = input(g, kBias);
    if (bias.valid()) {
      op.inputs.resize(std::max(op.inputs.size(), kAdded + 1));
      op.inputs[kAdded] = bias;
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
      std::vector<TensorId>& inputs = graph_.op(reader).inputs;
      inputs[kDxBias] = TensorId();
      while (!inputs.back().valid()) inputs.pop_back();
    }
  }

  Graph& graph_;
  const std::vector<OpId> producer_;
  const std::vector<std::vector<OpId>> readers_;
  std::map<OpId, OpId> gelu_of_;  // by product
  std::set<OpId> fused_;          // those of gelu_of_
};

class Backward {
 public:
  explicit Backward(Graph& graph)
      : graph_(graph), producer_(graph.producers()), readers_(readers_of(graph)) {}

  /// Returns whether anything has changed.
  bool run() {
    bool changed = false;
    for (size_t i = 0; i < graph_.num_ops(); ++i) {
      const OpId id(static_cast<int64_t>(i));
      if (graph_.removed(id) || !is_kind(graph_, id, "gelu_dx") || !fits(id)) continue;
      fuse(producer_[graph_.op(id).inputs[0].index()], id);
      changed = true;
    }
    return changed;
  }

 private:
  bool fits(OpId gelu) const {
    const Op& g = graph_.op(gelu);
    const OpId maker = producer_[g.inputs[0].index()];
    const ProductDx* const product = row_of(kBackward, graph_, maker);
    if (product == nullptr || input(g, kDxBias).valid()) return false;
    const Op& op = graph_.op(maker);
    const Tensor &made = graph_.tensor(op.outputs[0]), &wanted = graph_.tensor(g.outputs[0]);
    return readers_[op.outputs[0].index()].size() == 1 && !input(op, kAdded).valid() &&
           !input(op, product->sum).valid() && same_rows(op, g) &&
           input(op, product->counts) == input(g, kDxCounts) && made.shape == wanted.shape &&
           made.dtype == wanted.dtype && before(g.inputs[kDxSum], maker);
  }

  /// The tensor is there when the op begins, whose place the two take.
  bool before(TensorId t, OpId op) const {
    const OpId made = producer_[t.index()];
    return !made.valid() || made < op;
  }

  void fuse(OpId product, OpId gelu) {
    const Op& g = graph_.op(gelu);
    const size_t sum = row_of(kBackward, graph_, product)->sum;
    Op& op = graph_.op(product);
    op.inputs.resize(sum + 1);
    op.inputs[sum] = g.inputs[kDxSum];
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
  // A product may stand before what makes GELU's bias, as where experts' slots are joined.
  if (Forward(graph).run()) graph = compact(graph);
  if (Backward(graph).run()) graph = compact(graph);
  return graph;
}

}  // namespace moe
