// Helpers that several passes on MoE layers share: they find the ops of a layer, the origin of its
// rows and the counts of its rows. Functions that take a `Graph&` edit the graph in place; the
// others only read it. The passes themselves are in the subfolders.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/placement/placement.h"

namespace moe {

/// Returns, for error messages, which pass made an all-to-all or an op of experts work only on rows
/// in use, whose numbers are counted: its name, or the stage that places the layer's experts.
std::string counted_by(const Graph& graph, OpId op);
/// Returns each tensor's readers in program order, each once.
std::vector<std::vector<OpId>> readers_of(const Graph& graph);

/// The ops of one MoE layer whose rows are exchanged between ranks, in program order: `there` is
/// the all-to-all to the experts, `back` the all-to-all to the source ranks.
struct ExchangedLayer {
  OpId gate, dispatch, there, back;
  std::vector<OpId> experts;  // all ops between the two all-to-alls
};
/// Returns the MoE layers of a forward graph that exchange rows, in program order. Requires: no
/// all-to-all is cut.
std::vector<ExchangedLayer> exchanged_layers(const Graph& graph);
/// Makes both exchanges move rows, and the experts' ops compute rows, by the slots of a placement.
/// counts: the counts of the gate. rows: the output of slot_rows, [slots of a device, sources].
void send_by_slot(Graph& graph, const ExchangedLayer& layer, const PlacementBounds& bounds,
                  TensorId counts, TensorId placement, TensorId rows);
/// Recomputes the shapes and stored rows of outputs from those of the (changed) inputs, op by op in
/// this order.
void infer_shapes(Graph& graph, const std::vector<OpId>& order);

/// The origin of rows that are in slots.
struct RowsOrigin {
  TensorId counts;  // [E], the counts of the gate that assigned the slots
  /// The all-to-all that brought the rows; invalid while they are on their source rank.
  OpId exchange;
};
/// Searches from `rows` against the data flow, through the layer's all-to-all or dispatch. Throws
/// UserError naming the op `what` when it finds no gate or an all-to-all that is split into steps.
RowsOrigin origin_of_rows(const Graph& graph, TensorId rows, std::string_view what);

/// Returns the numbers of rows that each local expert holds from each source rank: the output of
/// the exchange_counts op for these counts in the group of the all-to-all (added when the graph has
/// none yet), or the counts themselves when no rows are exchanged.
TensorId received_counts(Graph& graph, const RowsOrigin& origin);

/// Returns the program in which every op with a number of at least `num_given` is moved right
/// before the first op that reads its output. So an added op that waits for less than its
/// neighbours does not come between the ops of a layer. Requires: one of the first `num_given` ops
/// reads an output of each op that moves.
Graph before_first_readers(const Graph& graph, size_t num_given);

}  // namespace moe
