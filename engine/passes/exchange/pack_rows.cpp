// The storage of rows in slots when all ops of an MoE layer use only the rows that hold a token.
// No system lists these passes: the rows' storage follows from what the other passes did.
#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/rules.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// The ops on rows of one layer from dispatch up to combine, in program order.
struct OpsOnRows {
  std::vector<OpId> ops;
  OpId padded;  // if valid: the first op that also uses rows that hold no token
};

OpsOnRows ops_on_rows(const Graph& graph, OpId dispatch) {
  std::set<TensorId> rows{graph.out(dispatch)};
  OpsOnRows found{{dispatch}, {}};
  for (const OpId id : graph.op_ids(dispatch.index() + 1)) {
    const Op& op = graph.op(id);
    const bool reads = std::any_of(op.inputs.begin(), op.inputs.end(),
                                   [&](TensorId t) { return rows.contains(t); });
    if (!reads) continue;
    const auto only_used = graph.def(id).only_used_rows;
    if (only_used == nullptr || !only_used(op) || ops::is_part(op)) return {{}, id};
    if (is(graph, id, MoeOp::kCombine)) continue;
    found.ops.push_back(id);
    rows.insert(op.outputs.begin(), op.outputs.end());
  }
  return found;
}

/// Whether the op makes rows in slots at the rank of their tokens: of tokens, or of their weights.
bool begins_rows(const Graph& graph, OpId id) {
  return is(graph, id, MoeOp::kDispatch) || is(graph, id, MoeOp::kDispatchWeight);
}

/// Sets the room of the output of an op that makes or moves rows: `own` rows where the rows are at
/// the rank of their tokens, and so have no axis of source ranks, else `at_experts`.
void set_room(Graph& graph, OpId id, int64_t own, int64_t at_experts) {
  Op& op = graph.op(id);
  const bool repeats = op.attrs.contains("times");
  if (!begins_rows(graph, id) && !carries(graph, id, Payload::kRows) && !repeats) return;
  op.rows.stored = graph.tensor(graph.out(id)).shape.size() == 3 ? own : at_experts;
}

}  // namespace

/// For each MoE layer of a forward graph whose ops use only rows in use (OpDef::only_used_rows):
/// leaves other rows undefined (attr loose) and, where a gate has a slot for every token, packs the
/// rows (ops/stored_rows.h). A device has room for as many rows as its tokens have choices, times
/// ModelSpec::rows_bound at its experts. Layers with other ops keep their padded slots. In the
/// result, slots do not have the numbers of packed rows yet. Where the model has no capacity and
/// its rows still stay padded, an entry of the log says because of which op.
Graph pack_rows(Graph graph, const PassContext& context) {
  const bool dropless = context.model.capacity_factor <= 0;
  OpId padded;
  for (const OpId id : graph.op_ids()) {
    if (!begins_rows(graph, id)) continue;
    const OpsOnRows on_rows = ops_on_rows(graph, id);
    const std::vector<OpId>& ops = on_rows.ops;
    if (!padded.valid()) padded = on_rows.padded;
    for (const OpId op : ops) {
      if (carries(graph, op, Payload::kRows) || graph.op(op).attrs.contains("rows")) {
        graph.op(op).rows.loose = true;
      }
    }
    if (ops.empty() || !dropless) continue;
    const TensorId choices = input_of(graph, graph.op(id), Role::kChoiceSlot);
    const int64_t own = num_elements(graph.tensor(choices).shape);
    const auto bound =
        static_cast<int64_t>(std::ceil(context.model.rows_bound * static_cast<double>(own)));
    const auto slots_of = [&](OpId op) {
      const Shape& slots = graph.tensor(graph.out(op)).shape;
      return num_elements(slots) / slots.back();
    };
    const int64_t sent = slots_of(id);
    for (const OpId op : ops) {
      // Padded slots are the most rows that any routing needs.
      const int64_t most = slots_of(op);
      const int64_t times = context.model.etp > 1 ? most / sent : 1;  // ranks whose rows they are
      set_room(graph, op, std::min(own * times, most), std::min(bound * times, most));
    }
    infer_shapes(graph, ops);
  }
  if (dropless && padded.valid()) {
    context.log->push_back(
        {"rows", "rows",
         fmt::format("there is a slot for every token at every expert, because op '{}' "
                     "uses all slots; with irregular_a2a and used_rows only the rows in use need "
                     "memory",
                     graph.op(padded).name)});
  }
  return graph;
}

}  // namespace moe
