#include "engine/routing/routing_model.h"

#include <algorithm>

#include "engine/base/errors.h"

namespace moe {

RoutingModel in_groups(RoutingModel model, int64_t ep) {
  const auto query_of = [ep](RoutingQuery query) {
    query.ep = ep;
    return query;
  };
  if (model.route) {
    model.route = [=, route = std::move(model.route)](const RoutingQuery& query, int64_t rank,
                                                      std::span<int32_t> choices) {
      route(query_of(query), rank, choices);
    };
  }
  if (model.scores) {
    model.scores = [=, scores = std::move(model.scores)](const RoutingQuery& query, int64_t rank) {
      return scores(query_of(query), rank);
    };
  }
  model.loads = [=, loads = std::move(model.loads)](const RoutingQuery& query) {
    return loads(query_of(query));
  };
  if (model.kept) {
    model.kept = [=, kept = std::move(model.kept)](const RoutingQuery& query) {
      return kept(query_of(query));
    };
  }
  return model;
}

Gate routed_gate(std::shared_ptr<const RoutingModel> routing, int64_t ranks,
                 int64_t tokens_per_rank, int64_t k,
                 std::function<int64_t(int64_t block)> moe_layer, int64_t micro_batches) {
  MOE_CHECK(routing != nullptr && ranks >= 1 && tokens_per_rank >= 1 && k >= 1,
            "routed_gate: `routing` must not be null, and ranks = {}, tokens_per_rank = {} and k = "
            "{} must be at least 1",
            ranks, tokens_per_rank, k);
  Gate gate = builtin_gate("top_k");
  gate.name = routing->name;
  gate.doc = "experts chosen by a routing model";
  gate.weight = kernels::WeightRule::kProb;
  gate.fixed_k = k;
  gate.columns = [k](int64_t, int64_t) { return k; };
  gate.capacity = [k, top_k = gate.capacity](int64_t tokens, int64_t experts, int64_t, double f) {
    return top_k(tokens, experts, k, f);
  };
  if (k == 1) gate.scope = GateScope::kToken;  // with k = 1, slots are taken in token order
  gate.fills_best = false;
  gate.route = [=, layer_of = std::move(moe_layer)](const GateInput& in, RoutingBuilder& out) {
    const int64_t share = in.first_token / tokens_per_rank,
                  first = in.first_token % tokens_per_rank;
    const int64_t rank = share % ranks, micro = share / ranks;
    MOE_CHECK(micro < micro_batches && first + in.tokens <= tokens_per_rank && in.k == k,
              "a gate got {} tokens from token {} on with k = {}, but its routing model is for {} "
              "ranks of {} tokens with k = {}; the tokens must be of one rank",
              in.tokens, in.first_token, in.k, ranks, tokens_per_rank, k);
    std::vector<int32_t> choices(static_cast<size_t>(tokens_per_rank * k));
    const RoutingQuery query = {.step = in.step * micro_batches + micro,
                                .layer = layer_of(in.layer),
                                .ranks = ranks,
                                .tokens = tokens_per_rank,
                                .experts = in.experts,
                                .k = k};
    routing->route(query, rank, choices);
    out.limit(nullptr);  // the scores are not those by which these choices were made
    out.fill(std::span<const int32_t>(choices).subspan(static_cast<size_t>(first * k),
                                                       static_cast<size_t>(in.tokens * k)),
             k);
  };
  return gate;
}

Gate scored_gate(Gate gate, std::shared_ptr<const RoutingModel> routing, int64_t ranks,
                 int64_t tokens_per_rank, std::function<int64_t(int64_t block)> moe_layer,
                 int64_t micro_batches) {
  MOE_CHECK(routing != nullptr && routing->scores && ranks >= 1 && tokens_per_rank >= 1,
            "scored_gate: `routing` must have scores, and ranks = {} and tokens_per_rank = {} must "
            "be at least 1",
            ranks, tokens_per_rank);
  gate.fills_best = false;
  gate.route = [=, rule = gate.scores, route = std::move(gate.route),
                layer_of = std::move(moe_layer)](const GateInput& in, RoutingBuilder& out) {
    const int64_t share = in.first_token / tokens_per_rank,
                  first = in.first_token % tokens_per_rank;
    const int64_t rank = share % ranks, micro = share / ranks;
    MOE_CHECK(
        micro < micro_batches && first + in.tokens <= tokens_per_rank,
        "a gate got {} tokens from token {} on, but its scores are for {} ranks of {} tokens; the "
        "tokens must be of one rank",
        in.tokens, in.first_token, ranks, tokens_per_rank);
    const ScoreLaw law = routing->scores({.step = in.step * micro_batches + micro,
                                          .layer = layer_of(in.layer),
                                          .ranks = ranks,
                                          .tokens = tokens_per_rank,
                                          .experts = in.experts,
                                          .k = in.k},
                                         rank);
    GateInput active = in;
    active.tokens = std::clamp<int64_t>(law.tokens - first, 0, in.tokens);
    if (active.tokens == 0) return;
    std::vector<float> scores(static_cast<size_t>(active.tokens * in.experts));
    law.write(rule, first, active.tokens, scores.data());
    limit_to_groups(in.groups, scores, in.experts);
    active.scores = scores.data();
    // Tokens that do not choose are not shown to the gate.
    RoutingMaps maps = out.maps();
    const std::vector<int32_t> used(maps.counts, maps.counts + maps.experts);
    maps.tokens = active.tokens;
    maps.part = true;
    RoutingBuilder builder(maps, used);
    if (in.groups.limits()) builder.limit(active.scores);
    route(active, builder);
  };
  return gate;
}

}  // namespace moe
