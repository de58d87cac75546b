#include "engine/exec/finite.h"

#include <string_view>

#include "engine/graph/op_def.h"

namespace moe {
namespace {

/// An output of which the op writes a part only, and another op the rest.
bool partly_written(const OpDef& def, size_t output) {
  return def.name == std::string_view("attn_context_dx") && output == 1;
}

}  // namespace

std::vector<TensorId> finite_operands(const Graph& graph, const Op& op) {
  const OpDef& def = graph.def(op);
  std::vector<TensorId> operands;
  if (def.collective == Collective::kAllToAll) return operands;
  const auto add = [&](TensorId t) {
    if (graph.tensor(t).dtype != DType::kI32) operands.push_back(t);
  };
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    if (!partly_written(def, i)) add(op.outputs[i]);
  }
  // The parameter; a momentum that is not finite makes it so too.
  if (!def.mutates.empty()) add(op.inputs[static_cast<size_t>(def.mutates[0])]);
  return operands;
}

}  // namespace moe
