// refetch_copies: where several micro-batches are in flight, the copies of experts that each makes
// for itself use one set of slots, so a micro-batch copies them again for its backward.
#include <map>

#include "engine/graph/op_def.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

class Refetch {
 public:
  explicit Refetch(Graph graph) : graph_(std::move(graph)), producers_(graph_.producers()) {}

  Graph run() {
    const size_t n = graph_.num_ops();
    std::map<int32_t, OpId> begins;  // by layer: the first op of its backward
    for (const OpId id : graph_.op_ids(0, n)) {
      if (is_again(graph_.op(id).phase)) begins.try_emplace(graph_.op(id).layer, id);
      if (of_micro_batch(id)) {
        for (const TensorId t : graph_.op(id).outputs) copied_.emplace(t, TensorId());
      }
      if (!is_view(graph_, graph_.op(id))) continue;
      for (const TensorId t : graph_.op(id).inputs) {
        if (t.valid() && copied_.contains(t)) copied_.emplace(graph_.out(id), TensorId());
      }
    }
    for (const OpId id : graph_.op_ids(0, n)) {
      if (const auto begin = begins.find(graph_.op(id).layer);
          begin != begins.end() && begin->second == id) {
        layer_ = begin->first;
        copy_again(n);
      }
      if (is_again(graph_.op(id).phase) && !is_view(graph_, graph_.op(id)))
        read_again(graph_.op(id));
      order_.push_back(id);
    }
    return with_order(graph_, order_);
  }

 private:
  static bool is_again(Phase phase) {
    return phase == Phase::kBackward || phase == Phase::kRecompute;
  }
  /// Whether the op copies experts by a placement that the micro-batch makes.
  bool of_micro_batch(OpId id) const {
    return carries(graph_, id, Payload::kShadows) && graph_.op(id).phase == Phase::kForward &&
           producers_[graph_.op(id).inputs[0].index()].valid();
  }
  /// Adds the copies of the layer and the views of them once more.
  void copy_again(size_t n) {
    for (const OpId id : graph_.op_ids(0, n)) {
      if (graph_.op(id).layer != layer_) continue;
      if (graph_.op(id).outputs.empty() || !copied_.contains(graph_.op(id).outputs[0])) continue;
      Op op = graph_.op(id);
      op.name += ".again";
      op.phase = Phase::kRecompute;
      read_again(op);
      for (TensorId& t : op.outputs) {
        Tensor tensor = graph_.tensor(t);
        tensor.name += ".again";
        TensorId& again = copied_.at(t);
        t = again = graph_.add_tensor(std::move(tensor));
      }
      order_.push_back(graph_.append(std::move(op)));
    }
  }
  void read_again(Op& op) const {
    for (TensorId& t : op.inputs) {
      const auto found = t.valid() ? copied_.find(t) : copied_.end();
      if (found != copied_.end() && found->second.valid()) t = found->second;
    }
  }

  Graph graph_;
  const std::vector<OpId> producers_;
  std::map<TensorId, TensorId> copied_;  // copies and views of them: those made again
  std::vector<OpId> order_;
  int32_t layer_ = -1;
};

}  // namespace

Graph refetch_copies(Graph graph, const PassContext&) {
  return Refetch(std::move(graph)).run();
}

}  // namespace moe
