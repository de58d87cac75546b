// Runs a gate outside a training, on scores from a law (scores.h), and counts its choices: for
// simulations of plans whose gate decides how many rows there are. Invariant: the gate is called as
// the executors call it, and the counts are a function of gate, law, sizes, step and layer. The
// gate runs for a sample of source ranks; token ids are made up, evenly over the vocabulary.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/routing/routing_model.h"

namespace moe {

/// A gate with the sizes of the plan that uses it.
struct GateUse {
  Gate gate;
  int64_t ranks = 1;
  int64_t tokens = 0;  // per rank
  int64_t experts = 1;
  int64_t k = 1, columns = 1;  // as in GateInput and RoutingMaps
  /// Slots per expert for a rank's tokens: where ranks route theirs together, a rank's part of all,
  /// though its tokens may take more.
  int64_t capacity = 0;
  int64_t slots = 0;  // per expert in the buffers of a rank; 0: the capacity
  int64_t vocab = 1;
  ExpertGroups groups = {};
  /// Returns the block of an MoE layer; GateInput::layer is the block.
  std::function<int64_t(int64_t layer)> block;
};

/// The most source ranks of a sample of a gate that does not ask whose tokens it gets, and under a
/// law the most tokens of each.
constexpr int64_t kMostSources = 16, kMostTokens = 4096;

/// What a gate does, on average over the source ranks and layers of a sample.
struct MeanRouting {
  int64_t sources = 0;        // number of ranks for which the gate ran, per layer; 0: none
  int64_t tokens = 0;         // tokens of each
  double choices = 0;         // per token, with dropped ones
  double kept = 0;            // per token
  double slot_occupancy = 1;  // kept choices per slot
  /// Kept choices divided by those that a gate with balanced choices would keep: k per token, or as
  /// many as there are slots. Exactly 1 where nothing is dropped.
  double of_balanced = 1;
  /// Whether the gate reads whose tokens it gets (GateInput), and more than a quarter of the
  /// choices of the first and the last rank fall on different experts: the mean says too little.
  bool by_source = false;
};

/// Runs the gate at step 0 in the first `layers` MoE layers. A source has all tokens of a rank, but
/// at most 65,536 (then with a capacity in proportion). There are as many sources, from 1 to 16, as
/// have about four million scores in all. It does not run where a token may have more than 8,192
/// choices. Throws the errors of the gate.
MeanRouting even_routing(const GateUse& use, int64_t layers);

/// Returns the routing of a gate by the scores of `law`, with `loads`, `kept`, `scores` and, if
/// columns = k, `route`: the choices with a slot. The gate runs for the first ranks, as many as
/// have about eight million scores in all, but 4 to 16, and for the first 4,096 tokens of each:
/// counts and choices of more tokens repeat theirs, and the sample has its part of the capacity. A
/// further rank is like one of these, drawn at random. A gate that reads whose tokens it gets
/// (GateInput) runs for all ranks, and for at least 256 tokens of each. The results of each step
/// and layer are kept. Requires: law->scores is not null. Not for several threads at a time.
/// Functions throw the errors of the gate and of the law.
RoutingModel gated_routing(GateUse use, std::shared_ptr<const RoutingModel> law);
/// Returns the mean of a gated_routing() over all ranks in one step and layer.
MeanRouting mean_routing(const RoutingModel& gated, const RoutingQuery& query);

}  // namespace moe
