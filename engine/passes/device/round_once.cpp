// Rounds parameters (and other float32 operands) to bfloat16 once per step. Where kernels store
// bf16, every matrix product would otherwise round such an operand again. An edit of a plan's graph
// for a device, after all passes (called by plan.cpp). The results have the same bits as without
// this edit. Each rounded operand is a tensor of the plan with its own lifetime and bytes.
#include <map>

#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

struct Use {
  OpId op;
  size_t input;
};

/// Returns the uses of each tensor that is rounded, in program order.
std::map<TensorId, std::vector<Use>> rounded_operands(const Graph& graph) {
  std::map<TensorId, std::vector<Use>> uses;
  for (const OpId id : graph.op_ids()) {
    if (!stores_bf16(graph, graph.op(id))) continue;
    for (const int input : graph.def(id).rounds) {
      const auto at = static_cast<size_t>(input);
      if (at >= graph.op(id).inputs.size()) continue;
      const TensorId t = graph.op(id).inputs[at];
      if (t.valid() && graph.tensor(t).dtype == DType::kF32) uses[t].push_back({id, at});
    }
  }
  return uses;
}

/// Adds the op that rounds t. It gets the phase, segment and layer of its first reader, but no
/// part, because it serves all parts.
TensorId add_round(Graph& graph, TensorId t, const Op& reader) {
  const OpId id = add_like(graph, reader, ops::kRound, graph.tensor(t).name + ".round", {t});
  graph.tensor(graph.out(id)).held = graph.tensor(t).held;
  return graph.out(id);
}

}  // namespace

/// For every f32 tensor that two or more products would round (OpDef::rounds of ops that store
/// bf16), adds one `round` op right before the first of these products, with that product's phase,
/// segment and layer. All these products then read the output of the `round` op.
Graph round_once(Graph graph, const PassContext&) {
  const size_t num_given = graph.num_ops();
  for (const auto& [t, uses] : rounded_operands(graph)) {
    if (uses.size() < 2) continue;
    const Op reader = graph.op(uses[0].op);
    const TensorId rounded = add_round(graph, t, reader);
    for (const Use& use : uses) graph.op(use.op).inputs[use.input] = rounded;
  }
  if (graph.num_ops() == num_given) return graph;
  return before_first_readers(graph, num_given);
}

}  // namespace moe
