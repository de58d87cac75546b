// Edits that passes make. Each leaves the graph to be compacted and verified by the pipeline.
#pragma once

#include "engine/graph/graph.h"

namespace moe {

/// Every reader of `from` (except the ops in `but`) reads `to` instead.
void redirect(Graph& graph, TensorId from, TensorId to, std::span<const OpId> but = {});

/// Cuts a chain of ops into parts along one axis of their data tensors. For every op of `ops` (in
/// program order) there are `parts` clones; an input that comes from outside the chain is cut by a
/// `split` op where cut_axis gives its axis and shared by all parts where it gives -1; an output
/// that is read outside is put together by a `concat` op. sizes: the length of each part along the
/// axis (equal lengths of every cut tensor's axis are required). Clones have part = 0, 1, ... and
/// the name "<op>.p<i>". Returns, a part, the clones in the order of `ops`.
/// Throws UserError when the sizes do not sum to the axis length.
struct CutAxis {
  TensorId tensor;
  int axis;
};
std::vector<std::vector<OpId>> split_ops(Graph& graph, std::span<const OpId> ops,
                                         std::span<const CutAxis> cuts,
                                         std::span<const int64_t> sizes);

}  // namespace moe
