#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

bool of_experts(const Graph& graph, OpId op) {
  const OpId maker = graph.producers()[graph.op(op).inputs[0].index()];
  return maker.valid() && is(graph, maker, MoeOp::kExpertProduct);
}

}  // namespace

/// Makes experts compute only the rows in use: their ops get attr rows="used" and the received
/// counts as an input. The gradients of their weights are then sums over the rows of one source
/// after the other, so they may differ in rounding. Throws UserError for an expert that is cut
/// along the capacity or whose rows arrive in steps.
Graph used_rows(Graph graph, const PassContext& context) {
  const size_t num_ops = graph.num_ops();
  size_t done_already =
      0;  // ops of experts in placed layers, which already compute only rows in use
  for (size_t i = 0; i < num_ops; ++i) {
    const OpId id(static_cast<int64_t>(i));
    const bool gelu = is(graph, id, BasicOp::kGelu) && of_experts(graph, id);
    if (!gelu && !is(graph, id, MoeOp::kExpertProduct)) continue;
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
    Op& op = graph.op(id);
    op.attrs["rows"] = std::string("used");
    set_input(graph, id, Role::kRecvCounts, received);
  }
  if (done_already > 0) {
    context.skip(
        fmt::format("{} ops of experts already compute only the rows in use because of an "
                    "earlier stage",
                    done_already));
  }
  return before_first_readers(graph, num_ops);
}

}  // namespace moe
