// What the passes on MoE layers share: how to find the layer's rows and counts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/placement/placement.h"

namespace moe {

/// What made an all-to-all or an op of experts work on counted rows, for errors: the pass, or the
/// stage that places the layer's experts.
std::string counted_by(const Graph& graph, OpId op);
/// By tensor, in program order; an op that reads it twice is there twice.
std::vector<std::vector<OpId>> readers_of(const Graph& graph);

/// The ops of one MoE layer whose rows are exchanged, in program order.
struct ExchangedLayer {
  OpId gate, dispatch, there, back;
  std::vector<OpId> experts;  // on rows at the experts' side
};
/// Those of a forward graph whose all-to-alls are whole, in program order.
std::vector<ExchangedLayer> exchanged_layers(const Graph& graph);
/// Both exchanges move rows, and the experts' ops take them, by the slots of a placement. counts:
/// of the gate; rows: [devices, slots, sources], slot_rows' output.
void send_by_slot(Graph& graph, const ExchangedLayer& layer, const PlacementBounds& bounds,
                  TensorId counts, TensorId placement, TensorId rows);
/// Shapes follow from changed ones, op by op in this order.
void infer_shapes(Graph& graph, const std::vector<OpId>& order);

/// Where rows of slots come from.
struct RowsOrigin {
  TensorId counts;  // [E] of the gate that laid them out
  OpId exchange;    // the all-to-all that they came by; invalid: they are still at their source
};
/// Found from the rows upwards through the layer's all-to-all or dispatch. Throws UserError naming
/// `what` when there is no gate.
RowsOrigin origin_of_rows(const Graph& graph, TensorId rows, std::string_view what);

/// The rows that each local expert holds from each source: the output of the exchange_counts op of
/// these counts in the all-to-all's group, added when there is none yet; the counts themselves
/// where no rows are exchanged.
TensorId received_counts(Graph& graph, const RowsOrigin& origin);

/// The program with each of the ops from number `num_given` on right before the first op that reads
/// it, so that no op which waits for less comes between the ops of a layer. Requires: each is read
/// by a given op.
Graph before_first_readers(const Graph& graph, size_t num_given);

}  // namespace moe
