// RoutingModel: the experts that the tokens of a step choose, without a model that computes scores.
// It is a workload by name and seed (workload.h), a recorded trace (trace.h), or a gate that reads
// the scores of a workload (gate_sample.h). Invariant: the result is a function of the query only,
// so simulator, executors' gates and all ranks get the same routing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "engine/routing/expert_counts.h"
#include "engine/routing/gate.h"
#include "engine/routing/scores.h"

namespace moe {

/// One MoE layer of one batch. `layer` counts only MoE layers, from 0.
struct RoutingQuery {
  /// The number of the batch: in steps of M micro-batches, step * M + the micro-batch, from 0.
  int64_t step = 0;
  int64_t layer = 0;
  int64_t ranks = 1;
  int64_t tokens = 0;  // per rank
  int64_t experts = 1;
  int64_t k = 1;  // choices per token, all of different experts
  /// Ranks that together hold all experts, a divisor of `ranks`; 0: all ranks.
  int64_t ep = 0;

  int64_t group() const { return ep > 0 ? ep : ranks; }
};

struct RoutingModel {
  std::string name;  // as in results and op attributes, with options and seed
  /// Writes the choices [tokens, k] of one rank, best first; -1: the token chooses no expert.
  /// Throws UserError when it cannot answer: a trace of other sizes, fewer experts than k.
  std::function<void(const RoutingQuery&, int64_t rank, std::span<int32_t> choices)> route;
  /// Returns how often each rank's tokens choose each expert: exactly the histogram of route().
  std::function<ExpertCounts(const RoutingQuery&)> loads;
  /// Returns the law of a rank's scores, whose k best experts are distributed as the choices of
  /// route(). Null: the model has choices only.
  std::function<ScoreLaw(const RoutingQuery&, int64_t rank)> scores = nullptr;
  /// Returns the choices in loads() that got a slot. Null: each rank and expert keeps as many as
  /// the capacity. Else the plan's gate chooses, by `scores`; `route` has kept choices, or is null.
  std::function<ExpertCounts(const RoutingQuery&)> kept = nullptr;

  bool runs_gate() const { return kept != nullptr; }
};

/// Returns the model for ranks of which each `ep`, one after the other, hold all experts.
RoutingModel in_groups(RoutingModel model, int64_t ep);

/// Returns a gate whose choices, k per token, come from a routing model. Otherwise it is the gate
/// top_k, except that its weights are the scores of the chosen experts without renormalization, so
/// that scores still get gradients, and that its scope is kToken if k = 1. It may get a part of one
/// rank's tokens (GateInput::first_token counts tokens_per_rank tokens per rank). moe_layer: maps a
/// block to its MoE layer, from 0. In steps of several micro-batches, the tokens of all ranks in
/// one micro-batch come before those of the next. The gate throws what routing->route() throws.
Gate routed_gate(std::shared_ptr<const RoutingModel> routing, int64_t ranks,
                 int64_t tokens_per_rank, int64_t k,
                 std::function<int64_t(int64_t block)> moe_layer, int64_t micro_batches = 1);

/// Returns `gate`, but it chooses by the scores of `routing` in place of those in its input. The
/// arguments are as in routed_gate(). Requires: routing->scores is not null.
Gate scored_gate(Gate gate, std::shared_ptr<const RoutingModel> routing, int64_t ranks,
                 int64_t tokens_per_rank, std::function<int64_t(int64_t block)> moe_layer,
                 int64_t micro_batches = 1);

}  // namespace moe
