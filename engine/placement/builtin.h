// The built-in placement policies, one file each, and what they share. What a policy does and which
// options it takes stands in its row, which its file makes; sources stand here.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/placement/policy.h"

namespace moe {

/// Pro-Prophet's greedy planner (prophet.h): copies of few experts to some devices, for one step.
PlacementPolicy prophet_policy();
/// FasterMoE's dynamic shadowing (He et al., PPoPP 2022; the policy of fastmoe's
/// fastermoe/shadow_policy.py): copies of the heaviest experts to all devices.
PlacementPolicy fastermoe_shadowing_policy();
/// Copies of the k heaviest experts to all devices, every step: top2 and top3 of Pro-Prophet,
/// figure 15.
PlacementPolicy top_k_policy();
/// As EPLB (DeepSeek, 2025) without its levels of nodes: heavy experts get more residents, shared
/// evenly, which are packed onto devices so that these compute as much. Parameters and state move.
PlacementPolicy eplb_policy();
/// As SmartMoE (Zhai et al., ATC 2023): owners change places until devices compute as much.
PlacementPolicy swap_policy();

// What they share.

/// [experts]
std::vector<int64_t> inputs_of_experts(const Loads& loads);
/// Expert numbers, those with most inputs first, ties to the lower number.
std::vector<int64_t> heaviest_first(const std::vector<int64_t>& inputs);
/// Owners [experts] of a placement without second residents. Throws UserError "<who>: ..." else.
std::vector<int64_t> single_owners(const Placement& placement, const char* who);
/// The placement without copies of a step, every expert shared locally.
Placement without_shadows(const Placement& placement);
/// without_shadows, and copies of the experts on all devices but their owners, the q-th in shadow
/// slot q.
Placement with_copies_everywhere(const Placement& placement, const std::vector<int64_t>& experts);
/// Throws UserError where the plan has no room for copies.
void require_shadows(const Placement& placement, const char* who);

/// Whether going from one placement of residents to another pays: the heaviest device computes at
/// least the part `keep` less, and (horizon > 0) the move has paid after `horizon` steps at most,
/// by the performance model, which needs rates. Options of eplb and swap alike.
bool pays(const PlaceInput& input, const Placement& next, const PolicyOptions& options,
          const char* who);
std::vector<OptionSpec> paying_options();

}  // namespace moe
