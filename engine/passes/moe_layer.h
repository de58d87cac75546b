// What the passes on MoE layers share: how to find the layer's rows and counts.
#pragma once

#include <string_view>

#include "engine/graph/graph.h"

namespace moe {

bool is_kind(const Graph& graph, OpId op, std::string_view kind);

/// The counts [E] of the gate that laid out these rows, found from the rows upwards through the
/// layer's all-to-all or dispatch. Throws UserError naming `what` when there is none.
TensorId counts_of_rows(const Graph& graph, TensorId rows, std::string_view what);

/// The rows that each local expert holds from each source: the output of the exchange_counts op of
/// these counts, added when there is none yet; on one rank the counts themselves.
TensorId received_counts(Graph& graph, TensorId counts);

}  // namespace moe
