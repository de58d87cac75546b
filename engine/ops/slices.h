// Sliced updates (ZeRO stage 1, Rajbhandari et al. 2020, arXiv 1910.02054, section 5.1): each rank
// of a group updates its slice of a parameter, by its slices of the gradient and of the states.
// Slices are flat and have Group::slice_length() elements; those that no element fills are 0.
#pragma once

#include "engine/ops/rules.h"

namespace moe::ops {

/// The attribute of an update of a slice, whose group is group_of(); other updates do not have it.
constexpr const char* kSliced = "sliced";

/// Whether the update op updates only this rank's slice of its parameter, input 0.
inline bool is_sliced(const Op& op) {
  return attr_int(op, kSliced) != 0;
}

/// Returns the shape of the slice of a tensor of this shape.
inline Shape slice_shape(const Shape& whole, const Group& group) {
  return {group.slice_length(num_elements(whole))};
}

/// Throws UserError unless the states and the gradient of an update (all inputs but the first) have
/// the shape of the parameter, or of its slice if the update is sliced.
inline void expect_update(const Graph& graph, const Op& op) {
  const Shape& w = expect_matrix(graph, op, 0, 1);
  const Shape allowed = is_sliced(op) ? slice_shape(w, group_of(graph, op)) : w;
  for (size_t i = 1; i < op.inputs.size(); ++i) expect_shape(graph, op, i, allowed);
}

/// Returns the work of an update: the states and the parameter are read and written, the gradient
/// is read. With a master copy among the states the parameter is only written.
inline Work update_work(const Graph& graph, const Op& op, double flops_per_element) {
  const TensorId gradient = input_of(graph, op, Role::kGradient);
  const auto elements = static_cast<double>(num_elements(graph.tensor(gradient).shape));
  const bool master = input_of(graph, op, Role::kMaster).valid();
  double bytes = 0;  // per element
  for (const TensorId t : op.inputs) {
    if (!t.valid()) continue;
    const bool once = t == gradient || (master && t == op.inputs[0]);
    bytes += (once ? 1 : 2) * static_cast<double>(dtype_bytes(graph.tensor(t).dtype));
  }
  return {.flops = flops_per_element * elements, .bytes = bytes * elements};
}

/// Returns the elements of the parameter that the update overwrites on a rank.
inline Slice updated(const Graph& graph, const Op& op, int64_t rank) {
  const int64_t elements = num_elements(shape(graph, op, 0));
  if (!is_sliced(op)) return {0, elements};
  const Group group = group_of(graph, op);
  return group.slice(elements, group.place(rank));
}

}  // namespace moe::ops
