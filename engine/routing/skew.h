// Which ranks have which experts under expert parallelism, and how uneven a Zipf law makes them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/routing_model.h"

namespace moe {

/// Returns the number of ranks of a group with experts: all, or one per expert if there are fewer
/// experts.
int64_t num_holders(const RoutingQuery& query);
/// Returns the experts of the rank at this place in its group, ascending: expert e is on rank e * D
/// / experts, D = num_holders().
std::vector<int32_t> experts_on(const RoutingQuery& query, int64_t rank);

/// Returns the exponent s, by bisection, with which the rank with the most choices is expected to
/// get `wanted` times the mean of the ranks of its group, if a token chooses expert_of[c], c = 0,
/// 1, ..., in proportion to (c + 1)^-s, k times without choosing one twice (whose mean is
/// approximated within about a percent). Throws UserError for a value that no exponent up to 20
/// reaches.
double zipf_exponent(const RoutingQuery& query, std::span<const int32_t> expert_of, double wanted);

}  // namespace moe
