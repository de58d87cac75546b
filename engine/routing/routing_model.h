// RoutingModel: which experts the tokens of a step choose, without computing scores: a workload by
// name and seed (workload.h) or a recorded trace (trace.h). It is a function of the query
// alone, so that the simulator, the executors' gates and every rank see the same routing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "engine/routing/expert_counts.h"
#include "engine/routing/gate.h"

namespace moe {

/// One MoE layer of one step. layer counts MoE layers from 0, not blocks.
struct RoutingQuery {
  int64_t step = 0;
  int64_t layer = 0;
  int64_t ranks = 1;
  int64_t tokens = 0;  // a rank
  int64_t experts = 1;
  int64_t k = 1;  // choices per token, all different
};

struct RoutingModel {
  std::string name;  // as results and the op's attributes show it, options and seed included
  /// choices [tokens, k] of one rank, best first; -1: no choice (a rank without tokens).
  /// Throws UserError where it cannot answer: a trace of other sizes, fewer experts than k.
  std::function<void(const RoutingQuery&, int64_t rank, std::span<int32_t> choices)> route;
  /// How often each rank's tokens choose each expert: exactly the histogram of route().
  std::function<ExpertCounts(const RoutingQuery&)> loads;
};

/// A gate of k choices that follows a routing model: rules of top_k (gate.h) but for its weights,
/// which are the scores of the experts chosen, so that gradients stay real. It sees a part of one
/// rank's tokens (GateInput::first_token counts tokens_per_rank a rank). moe_layer: block -> MoE
/// layer from 0. route() throws what that throws.
Gate routed_gate(std::shared_ptr<const RoutingModel> routing, int64_t ranks,
                 int64_t tokens_per_rank, int64_t k,
                 std::function<int64_t(int64_t block)> moe_layer);

}  // namespace moe
