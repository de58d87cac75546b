#include "engine/schedule/lifetime.h"

namespace moe {

TensorUses::TensorUses(const Graph& graph)
    : producer(graph.producers()), readers(graph.tensors().size()) {
  for (const OpId op : graph.op_ids()) {
    for (const TensorId t : graph.op(op).inputs) {
      if (!t.valid()) continue;
      std::vector<OpId>& list = readers[t.index()];
      if (list.empty() || list.back() != op) list.push_back(op);
    }
  }
}

bool is_persistent(const Graph& graph, TensorId tensor) {
  const TensorKind kind = graph.tensor(tensor).kind;
  return kind == TensorKind::kParam || kind == TensorKind::kState || kind == TensorKind::kInput;
}

bool is_result(const Graph& graph, const TensorUses& uses, TensorId tensor) {
  return uses.readers[tensor.index()].empty() && !is_persistent(graph, tensor) &&
         num_elements(graph.tensor(tensor).shape) == 1;
}

}  // namespace moe
