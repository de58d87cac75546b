#include "engine/exec/finite.h"

#include <algorithm>

#include "engine/graph/op_def.h"

namespace moe {
namespace {

/// An op joins rows of the tensor with those of others.
bool joined_by_rows(const Graph& graph, TensorId t) {
  return std::any_of(graph.ops().begin(), graph.ops().end(), [&](const Op& op) {
    if (!op.kind.valid()) return false;
    const std::vector<Piece> joined = pieces(graph, op);
    return std::any_of(joined.begin(), joined.end(),
                       [t](const Piece& p) { return p.piece == t && p.end.valid(); });
  });
}

/// Of a part (attr share) that touches only its rows, the others hold anything.
bool holds_rows_only(const Graph& graph, const Op& op, size_t output) {
  if (attr_int(op, "loose") != 0 && graph.tensor(op.outputs[output]).shape.size() == 4) return true;
  if (!op.attrs.contains("share")) return false;
  const OpDef& def = graph.def(op);
  return (def.rows_end != nullptr && def.rows_end(graph, op, output).valid()) ||
         joined_by_rows(graph, op.outputs[output]);
}

}  // namespace

std::vector<TensorId> finite_operands(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  std::vector<TensorId> operands;
  // Slots that hold no expert, and rows that hold no token, are never read.
  if (def.collective == Collective::kAllToAll || def.loose_slots || is_view(graph, op)) {
    return operands;
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const auto& partly = def.partly_written;
    if (graph.tensor(op.outputs[i]).dtype == DType::kI32 ||
        std::find(partly.begin(), partly.end(), static_cast<int>(i)) != partly.end() ||
        holds_rows_only(graph, op, i)) {
      continue;
    }
    operands.push_back(op.outputs[i]);
  }
  // The parameter; a momentum that is not finite makes it so too.
  if (def.mutates.empty()) return operands;
  const TensorId mutated = op.inputs[static_cast<size_t>(def.mutates[0])];
  if (graph.tensor(mutated).dtype != DType::kI32) operands.push_back(mutated);
  return operands;
}

}  // namespace moe
