// Placed MoE layers: the forward graph rewritten so that rows go to whatever devices hold their
// expert, by a placement that is a value of the run. Which policy makes it stands in `place` ops;
// the plan is never rebuilt.
#pragma once

#include <string_view>

#include "engine/passes/pass.h"
#include "engine/placement/policy.h"

namespace moe {

/// How a policy's placements are used. kNext: made from this step's loads, in force from the next
/// step on. kNow: made from the gate's counts and in force in the same layer and step.
enum class PlacementUse : uint8_t { kNext, kNow };

struct PlacementStage {
  std::string policy;  // a built-in one, or the name of a Lua policy
  PolicyOptions options;
  PlacementUse use = PlacementUse::kNext;
  int64_t every = 1;             // steps from one placement to the next
  int64_t shadows = 0;           // slots per device
  int64_t extra_residents = 0;   // slots per device, beyond experts / devices rounded up
  bool moves_residents = false;  // owners may move, experts may have more residents than one
  bool weighted = false;
  /// Copies go in two transfers, sub-Trans A and B of Pro-Prophet's scheduler (section V).
  bool split = false;
  double expected_copies = 1;  // that a device receives, for cost models before anything ran
};

/// Every MoE layer with an exchange gets, in the forward:
///   gather_loads, slot_rows     after the gate: what every source has, what every slot gets
///   all_to_all with placement   irregular; rows of an expert to the slots that hold it
///   copy_experts, concat        parameters into shadow slots, behind the residents'; with attr
///                               beside = "experts" or "between": the compute that may hide them
///   place                       the policy, on the loads: at the end of the step, or (kNow) first
/// a state "b<i>.placement", and experts in `residents` slots per device. Autodiff turns
/// copy_experts into return_gradients. Layers on one rank stay as they are. Throws UserError where
/// a stage has placed the layers already, where all-to-alls are cut or among fewer than all ranks,
/// and for bounds that make no sense.
Graph place_experts(Graph graph, const PlacementStage& stage, const PassContext& context);

/// What the compute between two MoE layers can hide of copies (Pro-Prophet, section V), in
/// sixteenths of experts, rounded down: T / tau, where tau is the time that an expert takes to all
/// devices and T the shorter of T_FNEC and T_BNEC. One cut for both directions: gradients go back
/// by the slots that the parameters came by. From 0 to 16 `shadows`. A planner fills shadow slots
/// in the order of its selection, so the first slots and a part of the next one, sub-Trans B, carry
/// what hides there of the experts that a step needs, and sub-Trans A the rest.
int64_t hidden_between(const PlacementRates& rates, int64_t shadows);

/// After the updates: gradients are summed over residents before they are applied, residents and
/// their states move to where the next placement has them, and that comes into force.
Graph add_placement_updates(Graph graph);

/// place_experts by the built-in policy and the options that the stage names.
Graph place_by_policy(Graph graph, const PassContext& context);

/// What a layer's planner counts with, from the cost model: rates of the links (slopes of closed
/// forms or of op_ns where no links are known), inputs through fc1, GELU and fc2 of `fc1`'s layer,
/// compute of the forward between this MoE layer's combine and the next one's dispatch.
PlacementRates fit_placement_rates(const Graph& graph, OpId exchange, const PassContext& context);

}  // namespace moe
