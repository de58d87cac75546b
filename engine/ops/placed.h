// What ops of MoE layers with a placement (experts assigned to device slots at run time) share. The
// sizes of a placement (PlacementBounds), and the rates (PlacementRates) and options by which a
// policy makes it, are attributes of ops; the placement itself is a tensor (placement/).
#pragma once

#include "engine/ops/rules.h"
#include "engine/placement/expert_transfers.h"
#include "engine/placement/policy.h"

namespace moe::ops {

/// Returns the bounds in attrs experts, devices, residents, shadows and weighted. Throws UserError
/// naming the op when they are not allowed. bounds_attrs is the inverse.
PlacementBounds bounds_of(const Op& op);
Attrs bounds_attrs(const PlacementBounds& bounds);

/// Returns attr occupancy for ops on rows in slots: experts divided by all devices' slots.
inline double slot_ratio_of(const PlacementBounds& bounds) {
  return static_cast<double>(bounds.experts) / static_cast<double>(bounds.devices * bounds.slots());
}

/// Returns the shadow slots that a copy_experts or return_gradients moves: attr first to attr
/// last - 1. The first slot's expert is moved only from attr begin, the last one's only up to attr
/// end (sixteenths of its rows; default: all). Returns one or two ranges; all slots of a range have
/// the same share of rows. Throws UserError naming the op.
std::vector<ShadowRange> shadow_ranges(const Op& op);
/// Returns, per shadow range of the op, the bytes of one expert in all tensors that an op of
/// Collective::kExperts moves; one number for ops without ranges.
std::vector<double> bytes_moved(const Graph& graph, const Op& op);

/// Throws UserError unless input i has the shape of a placement with these bounds.
void expect_placement(const Graph& graph, const Op& op, size_t i, const PlacementBounds& bounds);

/// Returns the placement that input i of a call encodes.
template <class T>
Placement placement_in(const KernelCall<T>& c, size_t i) {
  const PlacementBounds bounds = bounds_of(c.op);
  return Placement::decode(bounds,
                           {c.in_i32(i), static_cast<size_t>(Placement::code_size(bounds))});
}

/// Rates and options for the policy of a `place` op, read from attributes or made into them.
PlacementRates placement_rates(const Op& op);
Attrs rate_attrs(const PlacementRates& rates);
PolicyOptions place_options(const Op& op);
Attrs option_attrs(const PolicyOptions& options);

}  // namespace moe::ops
