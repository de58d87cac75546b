// Workloads: routing models by name, options and seed, for systems that are compared under skew.
// What a token chooses is a function of (name, options, seed, step, layer, ranks, tokens, experts,
// k, rank, token) alone, by counter-based hashing: no history, no state, any part in any order.
//
// Popularity belongs to classes of experts; a permutation, another one in each layer, says which
// expert a class is. A token draws its k experts one after the other by popularity, without taking
// one twice, so that the first is the best.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/option.h"
#include "engine/routing/routing_model.h"

namespace moe {

struct WorkloadDef {
  std::string name;
  std::string doc;
  std::vector<OptionSpec> options;
};

/// What there is:
///   balanced          every rank's choices spread evenly over the experts; counts of a rank, and
///                     those of all ranks together, differ by at most one
///   zipf              the i-th expert of a layer is chosen in proportion to i^-s
///   log_normal        each expert's popularity is exp(sigma z), z normal
///   hot_rank          the experts of one rank get `share` of the choices
///   hot_expert        one expert gets it
///   spread_hot        `hot` experts get it evenly, no two on a rank while another has none
///   source_ragged     every rank has a popularity of its own and from least * tokens to tokens
///                     tokens that choose, the same in all layers of a step
///   zero_token_rank   one rank's tokens choose nothing; zipf for the others
///   rotating_hotspot  a hot expert that moves on every `period` steps
///   burst             a hot expert in some stretches of `length` steps, even popularity otherwise
///   markov            layered Markov routing with a given ratio of most to least popular expert
/// Where a rank's experts count, expert e lies on rank e * D / experts, D = min(ranks, experts).
///
/// Options of all but balanced:
///   drift, memory     log popularity of each class also follows an AR(1) over steps: `drift` is
///                     the standard deviation of a step's innovation, exp(-1 / memory) the
///                     correlation of neighbouring steps; shares of hot experts stay as given
///   top1, top2, rise  where top1 > 0, the first choice in MoE layer i + 1 depends on that in layer
///                     i: on average over tokens, top1 of those that chose one expert choose the
///                     expert of the same class next, and top2 that one or the one beside it in
///                     popularity (Lina, Fig 9); never less than independent choices would. `rise`
///                     is the part of what is missing to 1 that each further layer adds.
///                     Popularity stays as it is without. Classes are the same in all layers then.
const std::vector<WorkloadDef>& workloads();

using WorkloadOptions = std::map<std::string, double>;

/// Throws UserError for an unknown name or option (with the nearest) and for a value out of range.
/// The routing model throws UserError for k > experts, and zero_token_rank where there is one rank.
RoutingModel workload(std::string_view name, const WorkloadOptions& options, uint64_t seed);

}  // namespace moe
