#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// Whether the op computes rows of experts: it is a product of experts, or can count its rows and
/// reads those of such an op.
bool of_experts(const Graph& graph, const std::vector<OpId>& producers, OpId op) {
  while (op.valid() && !is(graph, op, MoeOp::kExpertProduct)) {
    const OpDef& def = graph.def(op);
    const bool counts = place_of(def.inputs, Role::kRecvCounts).has_value();
    if (!counts || def.collective != Collective::kNone) return false;
    op = producers[graph.op(op).inputs[0].index()];
  }
  return op.valid();
}

}  // namespace

/// Makes experts compute only the rows in use: their ops get attr rows="used" and the received
/// counts as an input. The gradients of their weights are then sums over the rows of one source
/// after the other, so they may differ in rounding. Throws UserError for an expert that is cut
/// along the capacity or whose rows arrive in steps.
Graph used_rows(Graph graph, const PassContext& context) {
  const size_t num_ops = graph.num_ops();
  const std::vector<OpId> producers = graph.producers();
  bool changed = false;
  size_t done_already = 0;  // ops of experts in placed layers, which compute only rows in use
  for (const OpId id : graph.op_ids(0, num_ops)) {
    if (!of_experts(graph, producers, id)) continue;
    if (attr_string(graph.op(id), "rows") == "used") {
      ++done_already;
      continue;
    }
    if (graph.op(id).part >= 0) {
      throw user_error(
          "stage '{}': op '{}' computes part {} of the capacity, whose rows are not counted; use "
          "either used_rows or a cut along the capacity",
          context.stage, graph.op(id).name, graph.op(id).part);
    }
    const RowsOrigin origin = origin_of_rows(graph, graph.op(id).inputs[0], graph.op(id).name);
    const TensorId received = received_counts(graph, origin);
    changed = true;
    Op& op = graph.op(id);
    op.attrs["rows"] = std::string("used");
    set_input(graph, id, Role::kRecvCounts, received);
  }
  if (done_already > 0 && !changed) {
    context.skip(
        fmt::format("{} ops of experts already compute only the rows in use because of an "
                    "earlier stage",
                    done_already));
  }
  return before_first_readers(graph, num_ops);
}

}  // namespace moe
