#include "engine/exec/finite.h"

#include <algorithm>

#include "engine/graph/op_def.h"
#include "engine/ops/row_cut.h"

namespace moe {
namespace {

/// Whether some op joins rows of tensor `t` with rows of other tensors.
bool joined_by_rows(const Graph& graph, TensorId t) {
  return std::any_of(graph.ops().begin(), graph.ops().end(), [&](const Op& op) {
    if (!op.kind.valid()) return false;
    const std::vector<Piece> joined = pieces(graph, op);
    return std::any_of(joined.begin(), joined.end(),
                       [t](const Piece& p) { return p.piece == t && p.end.valid(); });
  });
}

/// Whether the op writes only some rows of this output, so that the others may hold garbage: if
/// its rows are packed or the op has attr loose, the rows in use; as a part of the batch (attr
/// share) or of the rows (attr cut, rounds), the rows of this part. Such an output is not checked.
bool holds_rows_only(const Graph& graph, const Op& op, size_t output) {
  if (graph.tensor(op.outputs[output]).stored_rows > 0) return true;
  if ((op.rows.is_cut() || op.rows.loose) && !op.is_dw) return true;
  if (!op.rows.share) return false;
  const OpDef& def = graph.def(op);
  return (def.rows_end != nullptr && def.rows_end(graph, op, output).valid()) ||
         joined_by_rows(graph, op.outputs[output]);
}

}  // namespace

std::vector<TensorId> finite_operands(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  std::vector<TensorId> operands;
  // Slots without an expert and rows without a token are never read, so they may hold garbage.
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
  // The updated parameter; when its momentum is not finite, neither is the parameter.
  if (def.mutates.empty()) return operands;
  const TensorId mutated = op.inputs[static_cast<size_t>(def.mutates[0])];
  if (graph.tensor(mutated).dtype != DType::kI32) operands.push_back(mutated);
  return operands;
}

}  // namespace moe
