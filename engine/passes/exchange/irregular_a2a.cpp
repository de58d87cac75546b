#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {

/// Makes all-to-alls carry only real rows, without padding (Lancet, section 5.3: first the counts,
/// then the rows). Each all-to-all gets attr irregular=1 and, as an input, the received counts,
/// which one exchange_counts op per gate makes; the backward reuses these counts. Changes nothing
/// when no rows are exchanged. Throws UserError for an all-to-all that is cut along the capacity or
/// split into steps.
Graph irregular_a2a(Graph graph, const PassContext& context) {
  const size_t num_ops = graph.num_ops();
  bool changed = false;
  size_t done_already = 0;  // all-to-alls of placed layers, which already carry only real rows
  for (const OpId id : graph.op_ids(0, num_ops)) {
    if (!carries(graph, id, Payload::kRows)) continue;
    if (graph.op(id).rows.irregular) {
      ++done_already;
      continue;
    }
    if (graph.op(id).part >= 0) {
      throw user_error(
          "stage '{}': op '{}' carries part {} of the capacity, whose rows are not counted; use "
          "either irregular transfers or a cut along the capacity",
          context.stage, graph.op(id).name, graph.op(id).part);
    }
    const RowsOrigin origin = origin_of_rows(graph, graph.out(id), graph.op(id).name);
    const TensorId received = received_counts(graph, origin);
    changed = true;
    Op& op = graph.op(id);
    op.rows.irregular = true;
    set_input(graph, id, Role::kCounts, origin.counts);
    set_input(graph, id, Role::kRecvCounts, received);
  }
  if (done_already > 0 && !changed) {
    context.skip(fmt::format(
        "{} all-to-alls already carry only real rows because of an earlier stage", done_already));
  }
  return before_first_readers(graph, num_ops);
}

}  // namespace moe
