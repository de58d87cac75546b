// What the ops of placed MoE layers share: the bounds of their placements as attributes.
#pragma once

#include "engine/ops/rules.h"
#include "engine/placement/expert_transfers.h"
#include "engine/placement/policy.h"

namespace moe::ops {

/// From attrs experts, devices, residents, shadows, weighted. Throws UserError naming the op.
PlacementBounds bounds_of(const Op& op);
Attrs bounds_attrs(const PlacementBounds& bounds);

/// Attr occupancy of ops on rows in slots: experts over slots.
inline double slot_ratio_of(const PlacementBounds& bounds) {
  return static_cast<double>(bounds.experts) / static_cast<double>(bounds.devices * bounds.slots());
}

/// The shadow slots that a copy_experts or return_gradients moves: first to last-1, of the first
/// one from attr begin, of the last one to attr end (sixteenths; all where they are not given). One
/// range or two, those of one share each. Throws UserError naming the op.
std::vector<ShadowRange> shadow_ranges(const Op& op);
/// Of one expert that an op of Collective::kExperts moves, in all of its tensors; by range.
std::vector<double> bytes_moved(const Graph& graph, const Op& op);

/// Input i is a placement within these bounds.
void expect_placement(const Graph& graph, const Op& op, size_t i, const PlacementBounds& bounds);

/// The placement in input i of a call.
template <class T>
Placement placement_in(const KernelCall<T>& c, size_t i) {
  const PlacementBounds bounds = bounds_of(c.op);
  return Placement::decode(bounds,
                           {c.in_i32(i), static_cast<size_t>(Placement::code_size(bounds))});
}

/// What a `place` op's policy counts with, as attributes and back.
PlacementRates placement_rates(const Op& op);
Attrs rate_attrs(const PlacementRates& rates);
PolicyOptions place_options(const Op& op);
Attrs option_attrs(const PolicyOptions& options);

}  // namespace moe::ops
