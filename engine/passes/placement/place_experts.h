// Placed MoE layers: rewrites the forward graph so that rows go to the devices that hold their
// expert according to a placement, which is a value of the run. Invariant: the plan is never
// rebuilt when a placement changes. The policy that makes placements is only named in `place`
// ops: a built-in one, in engine/placement, or one of the recipe (Policies::place).
#pragma once

#include "engine/passes/pass.h"
#include "engine/placement/policy.h"

namespace moe {

/// When a placement takes effect. kNext: made from the loads of this step, used from the next step
/// on. kNow: made from the counts of the gate and used in the same layer and step.
enum class PlacementUse : uint8_t { kNext, kNow };

struct PlacementStage {
  std::string policy;  // name of a built-in policy or of a Lua policy
  PolicyOptions options;
  PlacementUse use = PlacementUse::kNext;
  int64_t every = 1;    // steps from one placement to the next
  int64_t shadows = 0;  // slots per device for copies
  /// Slots per device for residents, beyond experts / devices rounded up.
  int64_t extra_residents = 0;
  bool moves_residents = false;  // owners may move, and experts may have more than one resident
  bool weighted = false;         // Sharing::kWeighted is allowed
  /// Whether copies are sent in two transfers, sub-Trans A and B of Pro-Prophet (section V).
  bool split = false;
  int64_t static_rows = 0;  // rows that a copy with rows computes, the rest padding; 0: no padding
  double plan_s = 0;        // time of one plan of a layer in seconds, charged in simulations
  double expected_copies = 1;  // per device and step, for cost models before any run
};

/// Every MoE layer with an exchange gets, in the forward:
///   gather_loads, slot_rows     after the gate: count the rows of every source, on all ranks, and
///                               of every slot
///   all_to_all with placement   irregular; sends rows of an expert to the slots that hold it
///   copy_experts, concat        copies parameters into shadow slots, after the resident slots;
///                               attr beside = "experts" or "between": the compute that may hide
///                               the copy
///   place                       runs the policy on the loads: at the end of the step, with kNow
///                               before the rows are sent; attr static_rows, see RoutedStep;
///                               attr plan_s, in seconds, is a part of its Work
/// It also gets a state "b<i>.placement", and its experts get `residents` slots per device.
/// The devices of a placement are the ranks that hold all experts together. Where there are several
/// groups of such ranks, each moves its own rows and experts, but all take one placement, which the
/// policy makes from their mean loads: the ranks at one place of the groups then hold the same
/// experts in the same slots, so that an all-reduce sums their gradients, and parameters and states
/// of an expert stay equal in all groups. Autodiff turns copy_experts into return_gradients. Layers
/// on one rank stay as they are. Throws UserError when a stage has already placed the layers, when
/// all-to-alls are cut or a step of one, and for bounds that check(PlacementBounds) refuses.
Graph place_experts(Graph graph, const PlacementStage& stage, const PassContext& context);

/// Returns how much of the copies the compute between two MoE layers can hide (Pro-Prophet, section
/// V), in sixteenths of experts, rounded down: T / tau, where tau is the time in which an expert
/// reaches all devices and T the shorter of T_FNEC and T_BNEC (that compute in the forward and in
/// the backward). Both directions use this one cut, because gradients return by the slots that the
/// parameters came by. The value is from 0 to 16 * shadows. A planner fills shadow slots in the
/// order in which it selects experts. So the first slots and a part of the next one (sub-Trans B)
/// hold the copies of a step that can be hidden there, and sub-Trans A holds the rest.
int64_t hidden_between(const PlacementRates& rates, int64_t shadows);

/// Returns the rates that a layer's planner uses, from the cost model: rates of the links (slopes
/// of closed forms, or of op_ns when no links are known), inputs per second through fc1, GELU and
/// fc2 of the layer of `exchange`, and the time of the forward's compute between this MoE layer's
/// combine and the next one's dispatch, beside which the next layer's copies travel. With a cost
/// model without times only input_bytes is set.
PlacementRates fit_placement_rates(const Graph& graph, OpId exchange, const PassContext& context);

}  // namespace moe
