// What the built-in placement policies share. Not here: the policies, one file each, which are
// listed in builtin.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/placement/policy.h"

namespace moe {

/// [experts]
std::vector<int64_t> inputs_of_experts(const ExpertCounts& loads);
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
