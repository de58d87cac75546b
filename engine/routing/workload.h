// Workloads: routing models by name, options and seed, for comparing systems under skew. Invariant:
// the choice of a token is a function of only (name, options, seed, step, layer, ranks, tokens,
// experts, k, rank, token), by counter-based hashing. There is no history or state, so any part can
// be computed in any order.
//
// Popularity belongs to classes of experts; a permutation, a different one per layer, maps classes
// to experts. A token draws its k experts one after the other by popularity without taking one
// twice; the first is its best choice. Recorded routing is in trace.h.
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
  /// Whether experts have a popularity, so that a gate can choose by scores that follow it. Under
  /// such scores first choices do not depend on the layer before (top1, top2).
  bool has_popularity = false;
};

/// The workloads:
///   balanced          a rank's choices are spread evenly over the experts; counts of a rank, and
///                     of all ranks together, differ by at most one
///   zipf              the i-th expert of a layer is chosen in proportion to i^-s; with
///                     max_over_mean, s is such that the rank with most choices is expected to get
///                     so many times the mean of the ranks of its group, without drift
///   log_normal        each expert's popularity is exp(sigma z), z normal
///   hot_rank          the experts of one rank get `share` of the first choices (further choices
///                     of a token follow the popularity of the experts that are left)
///   hot_expert        one expert gets `share` of the first choices
///   spread_hot        `hot` experts get `share` in equal parts, no two on a rank while another
///                     rank has none
///   source_ragged     every rank has its own popularity, and from least * tokens to tokens of its
///                     tokens choose, the same number in all layers of a step
///   zero_token_rank   one rank's tokens choose nothing; the other ranks follow zipf
///   rotating_hotspot  one hot expert, a different one after every `period` steps
///   burst             one hot expert in some stretches of `length` steps, else even popularity
///   markov            layered Markov routing with a given ratio of most to least popular expert
///   token_classes     tokens keep a class through all layers (token_classes.h)
///   W0_balanced, ...  those of Megatron-LM's token-imbalance benchmark (token_imbalance.h)
/// Where it matters which rank has an expert, expert e is on rank e * D / experts, D = min(ranks of
/// the expert-parallel group, experts), and so is that of the rank's place in every group.
///
/// Options of all workloads except balanced, token_classes and W0 to W7:
///   drift, memory     log popularity of each class follows an AR(1) process over steps: `drift` is
///                     the standard deviation of a step's innovation, exp(-1 / memory) the
///                     correlation of neighbouring steps; the shares of hot experts do not drift
///   top1, top2, rise  if top1 > 0, the first choice in MoE layer i + 1 depends on that in layer i:
///                     on average, a share top1 of the tokens that chose an expert next choose
///                     the expert of the same class, and a share top2 that one or the one of the
///                     class paired with it (Lina, Fig 9); never less than independent choices
///                     give. Each further layer raises both shares by the fraction `rise` of what
///                     they lack to 1. Popularity stays the same; so do classes in all layers.
const std::vector<WorkloadDef>& workloads();

using WorkloadOptions = std::map<std::string, double>;

/// Throws UserError for an unknown name or option (with the nearest) and for a value out of range.
/// The routing model throws UserError for k > experts, and zero_token_rank for a single rank.
RoutingModel workload(std::string_view name, const WorkloadOptions& options, uint64_t seed);

}  // namespace moe
