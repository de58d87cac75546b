// Edits of a graph that several passes share. After an edit, ops may be out of program order; the
// pipeline calls compact() and verify(). Passes are in passes/.
#pragma once

#include "engine/graph/graph.h"

namespace moe {

/// Makes every op that reads `from`, except the ops in `but`, read `to` instead.
void redirect(Graph& graph, TensorId from, TensorId to, std::span<const OpId> but = {});

/// Adds an op that has the phase, segment and layer of `of`. The arguments are those of
/// Graph::add_op().
OpId add_like(Graph& graph, const Op& of, const OpDef& def, std::string name,
              std::vector<TensorId> inputs, Attrs attrs = {});

/// Returns Op::part of part `part` of `parts` of an op, which may be a part already.
int32_t part_of_part(const Op& op, size_t part, size_t parts);

/// For split_ops: the axis along which a tensor is cut.
struct CutAxis {
  TensorId tensor;
  int axis;
};
/// Cuts a chain of ops (`ops`, in program order) into one part per entry of `sizes`, which is the
/// length of the part along the cut axis; all cut axes must have the same length. Each op is
/// replaced by one clone per part, named "<op>.p<i>", with Op::part = i (part_of_part of a part).
/// An input from outside the chain is cut by a `split` op if it is in `cuts`, and otherwise read by
/// all parts. The parts of an output that is read outside the chain are joined by a `concat` op.
/// Returns, for each part, the clones in the order of `ops`. Throws UserError when the sizes do not
/// sum to the length of a cut axis or an output that is read outside is not in `cuts`.
std::vector<std::vector<OpId>> split_ops(Graph& graph, std::span<const OpId> ops,
                                         std::span<const CutAxis> cuts,
                                         std::span<const int64_t> sizes);

}  // namespace moe
