// The storage of rows in slots when all ops of an MoE layer use only the rows that hold a token.
// No system lists these passes: the rows' storage follows from what the other passes did.
#pragma once

#include <vector>

#include "engine/passes/pass.h"

namespace moe {

/// For each MoE layer of a forward graph whose ops use only rows in use (OpDef::only_used_rows):
/// leaves other rows undefined (attr loose) and, where a gate has a slot for every token, packs the
/// rows (ops/stored_rows.h). A device has room for as many rows as its tokens have choices, times
/// ModelSpec::rows_bound at its experts. Layers with other ops keep their padded slots. In the
/// result, slots do not have the numbers of packed rows yet. Where the model has no capacity and
/// its rows still stay padded, an entry of the log says because of which op.
Graph pack_rows(Graph graph, const PassContext& context);

/// Gives the slots of packed rows their numbers: adds a pack_slots op after each gate, or, in a
/// layer that is cut along the batch, after the op that counts the rows of a part. Ops on the whole
/// batch get the counts of all parts. Called after all passes that cut ops.
Graph number_packed_rows(const Graph& graph);

}  // namespace moe
