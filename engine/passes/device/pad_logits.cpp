// Rows of logits that begin at multiples of 128 bytes. Where the vocabulary is no multiple of 64,
// tensor cores cannot read rows of logits as vectors: the products of a head of GPT-2's vocabulary
// take 3.5 to 8 times as long on an H200. An edit of a plan's graph for a device, after round_once.
// Parameters, their gradients and states keep their shapes, since their rows are those of the
// model's width.
#include <algorithm>
#include <vector>

#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

constexpr int64_t kMultiple = 64;  // numbers in bf16: 128 bytes, a line of the L2 cache

/// The ops between the weight of a head and the gradients of the head.
struct Head {
  OpId linear, loss, dw;
  std::vector<OpId> inside;  // all that read rows of logits or of their gradients
};

class Padding {
 public:
  explicit Padding(Graph& graph)
      : graph_(graph), readers_(readers_of(graph)), producers_(graph.producers()) {}

  /// Pads the logits of this op, if it is the head of a model and all that they reach is known.
  void pad(OpId linear) {
    const Op& op = graph_.op(linear);
    if (&graph_.def(op) != &ops::kLinear || op.inputs.size() > 2 || !stores_bf16(graph_, op))
      return;
    const int64_t vocab = graph_.tensor(op.outputs[0]).shape.back();
    const int64_t padded = (vocab + kMultiple - 1) / kMultiple * kMultiple;
    Head head = {.linear = linear};
    if (padded == vocab || !follow(op.outputs[0], head) || !head.loss.valid() ||
        !has_own_weight(head))
      return;
    pad_weight(head, padded);
    for (const TensorId t : rows_) graph_.tensor(t).shape.back() = padded;
    graph_.op(head.loss).attrs["cols"] = vocab;
    if (head.dw.valid()) graph_.op(head.dw).attrs["cols"] = vocab;
  }

 private:
  bool rounds(TensorId t) const {
    const OpId writer = producers_[t.index()];
    return writer.valid() && &graph_.def(writer) == &ops::kRound;
  }

  /// Adds the readers of rows of logits `t`, and theirs; returns whether all are of known kinds.
  bool follow(TensorId t, Head& head) {
    if (head.inside.empty()) rows_.clear();
    rows_.push_back(t);
    const auto known = [&](OpId reader) {
      const Op& op = graph_.op(reader);
      const OpDef* const def = &graph_.def(op);
      head.inside.push_back(reader);
      if (def == &ops::kLinearDx) return op.inputs[0] == t;
      if (def == &ops::kLinearDw) head.dw = reader;
      if (def == &ops::kLinearDw) return op.inputs[0] == t && op.outputs.size() == 1;
      if (def == &ops::kCrossEntropy) head.loss = reader;
      const bool scaled = def == &ops::kScale && (op.inputs.size() < 2 || !op.inputs[1].valid());
      return (def == &ops::kCrossEntropy || scaled) && follow(op.outputs.back(), head);
    };
    const std::vector<OpId>& readers = readers_[t.index()];
    return std::all_of(readers.begin(), readers.end(), known);
  }

  /// Whether only products of the head read the weight once it is rounded.
  bool has_own_weight(const Head& head) const {
    const TensorId weight = graph_.op(head.linear).inputs[1];
    const std::vector<OpId>& readers = readers_[weight.index()];
    return !rounds(weight) || std::all_of(readers.begin(), readers.end(), [&](OpId id) {
      return id == head.linear ||
             std::find(head.inside.begin(), head.inside.end(), id) != head.inside.end();
    });
  }

  /// Makes all products of the head read the weight with zeros after it, `rows` rows in all.
  void pad_weight(const Head& head, int64_t rows) {
    const Op op = graph_.op(head.linear);
    const TensorId weight = op.inputs[1];
    const OpId round = rounds(weight) ? producers_[weight.index()]
                                      : add_like(graph_, op, ops::kRound,
                                                 graph_.tensor(weight).name + ".round", {weight});
    const TensorId rounded = graph_.out(round);
    graph_.op(round).attrs["rows"] = rows;
    graph_.tensor(rounded).shape[0] = rows;
    graph_.op(head.linear).inputs[1] = rounded;
    for (const OpId id : head.inside)
      if (&graph_.def(id) == &ops::kLinearDx) graph_.op(id).inputs[1] = rounded;
  }

  Graph& graph_;
  const std::vector<std::vector<OpId>> readers_;
  const std::vector<OpId> producers_;
  std::vector<TensorId> rows_;  // the logits of the head, those scaled, and their gradients
};

}  // namespace

/// For each `linear` op in bf16 without bias whose result is the logits of the model's loss, alone
/// or by way of `scale`: the rounded weight gets rows of zeros, up to a multiple of 64 rows (attr
/// rows of `round`); so the logits get columns of zeros, which the loss leaves out (attr cols),
/// as linear_dw leaves out their gradients, which are 0. Other ops stay as they are.
Graph pad_logits(Graph graph, const PassContext&) {
  const size_t num_given = graph.num_ops();
  Padding padding(graph);
  for (const OpId id : graph.op_ids(0, num_given)) padding.pad(id);
  return graph.num_ops() == num_given ? graph : before_first_readers(graph, num_given);
}

}  // namespace moe
