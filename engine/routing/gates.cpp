#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/base/rng.h"
#include "engine/routing/gate.h"
#include "engine/routing/primitives.h"

namespace moe {
namespace {

using kernels::WeightRule;

// Random stream of gate random, different from those of parameters and tokens.
constexpr uint64_t kRandomGateStream = 1000033;

ScoreMatrix scores_of(const GateInput& in) {
  MOE_CHECK(in.scores != nullptr, "GateInput::scores is null, but the gate that runs needs scores");
  return {std::span(in.scores, static_cast<size_t>(in.tokens * in.experts)), in.experts};
}

void route_top(const GateInput& in, int64_t k, RoutingBuilder& out) {
  out.fill(topk_rows(scores_of(in), k), k);
}

void route_bpr(const GateInput& in, RoutingBuilder& out) {
  const std::vector<int32_t> choices = argmax_rows(scores_of(in));
  std::vector<float> best(choices.size());
  for (size_t t = 0; t < best.size(); ++t) {
    if (choices[t] < 0) continue;
    best[t] = in.scores[static_cast<int64_t>(t) * in.experts + choices[t]];
  }
  out.fill(choices, 1, order_by_score(best));
}

void route_expert_choice(const GateInput& in, RoutingBuilder& out) {
  const ScoreMatrix s = scores_of(in);
  for (int64_t e = 0; e < in.experts; ++e) {
    for (const int32_t t : topk_col(s, e, std::min(out.left(e), in.tokens))) out.take(t, e);
  }
}

void route_hash(const GateInput& in, RoutingBuilder& out) {
  MOE_CHECK(in.ids != nullptr, "GateInput::ids is null, but gate hash needs token ids");
  for (int64_t t = 0; t < in.tokens; ++t) {
    MOE_CHECK(in.ids[t] >= 0, "gate hash: token {} has the token id {}, but must have at least 0",
              t, in.ids[t]);
    out.take(t, in.ids[t] % in.experts);
  }
}

// Draw j of a token is uniform over the experts that draws 0 .. j-1 of this token have not taken;
// `sorted` holds the taken ones in order.
void route_random(const GateInput& in, RoutingBuilder& out) {
  const uint32_t layer = hash32(static_cast<uint64_t>(in.layer), kRandomGateStream);
  const uint32_t step = hash32(static_cast<uint64_t>(in.step), layer);
  std::vector<int64_t> sorted;
  for (int64_t t = 0; t < in.tokens; ++t) {
    sorted.clear();
    for (int64_t j = 0; j < in.k; ++j) {
      const uint64_t token = static_cast<uint64_t>(in.first_token + t);
      const uint64_t r = random24(token, hash32(static_cast<uint64_t>(j), step));
      int64_t e = static_cast<int64_t>((r * static_cast<uint64_t>(in.experts - j)) >> 24);
      auto at = sorted.begin();
      for (; at != sorted.end() && *at <= e; ++at) ++e;
      sorted.insert(at, e);
      out.take(t, e);
    }
  }
}

// Returns the slots per expert: share * factor * tokens / experts, rounded up; `tokens` if factor
// <= 0. k, the choices per token, is only checked. Throws UserError for arguments out of range.
int64_t capacity_of(const std::string& gate, int64_t share, int64_t k, int64_t tokens,
                    int64_t experts, double factor) {
  if (tokens < 1) throw user_error("gate {}: tokens = {} must be at least 1", gate, tokens);
  if (experts < 1) throw user_error("gate {}: experts = {} must be at least 1", gate, experts);
  if (k < 1 || k > experts) {
    throw user_error("gate {}: k = {} must be between 1 and experts = {}", gate, k, experts);
  }
  if (!std::isfinite(factor)) {
    throw user_error("gate {}: capacity factor = {} must be finite", gate, factor);
  }
  const double places = factor <= 0
                            ? static_cast<double>(tokens)
                            : std::ceil(static_cast<double>(share) * factor *
                                        static_cast<double>(tokens) / static_cast<double>(experts));
  if (places * static_cast<double>(experts) > std::numeric_limits<int32_t>::max()) {
    throw user_error(
        "gate {}: capacity factor = {} gives {} slots for each of {} experts, too many; at most {} "
        "slots in all are allowed",
        gate, factor, places, experts, std::numeric_limits<int32_t>::max());
  }
  return static_cast<int64_t>(places);
}

// Makes a gate that gives every token fixed_k choices, or the model's k if fixed_k is 0.
Gate choice_gate(std::string name, std::string doc, GateScope scope, WeightRule weight,
                 int64_t fixed_k, decltype(Gate::route) route) {
  Gate gate;
  gate.name = std::move(name);
  gate.doc = std::move(doc);
  gate.scope = scope;
  gate.weight = weight;
  gate.fixed_k = fixed_k;
  gate.columns = [fixed_k](int64_t k, int64_t) { return fixed_k > 0 ? fixed_k : k; };
  gate.capacity = [name = gate.name, fixed_k](int64_t tokens, int64_t experts, int64_t k,
                                              double factor) {
    const int64_t choices = fixed_k > 0 ? fixed_k : k;
    return capacity_of(name, choices, choices, tokens, experts, factor);
  };
  gate.route = std::move(route);
  gate.token_scope_without_capacity = scope == GateScope::kBatch;
  return gate;
}

// Makes a gate that fills slots with the fixed_k best experts of every token, or the model's k best
// if fixed_k is 0.
Gate filling_gate(std::string name, std::string doc, GateScope scope, WeightRule weight,
                  int64_t fixed_k) {
  Gate gate = choice_gate(std::move(name), std::move(doc), scope, weight, fixed_k,
                          [fixed_k](const GateInput& in, RoutingBuilder& out) {
                            route_top(in, fixed_k > 0 ? fixed_k : in.k, out);
                          });
  gate.fills_best = true;
  return gate;
}

/// The capacity is the ceiling of c * factor * tokens / experts, multiplied from left to right,
/// with the c of this list of gates:
///   switch         c 1  the best expert, slots in token order (Fedus et al. 2021)
///   top_k          c k  the k best, slots in GShard order, weights renormalized (1 when k is 1)
///   top2           c 2  top_k with k = 2 (Lepikhin et al. 2020)
///   top2_c1        c 1  top2 with half the slots
///   bpr            c 1  switch, slots in order of the score, best first (Riquelme et al. 2021)
///   expert_choice  c 1  every expert takes the tokens that score best for it (Zhou et al. 2022)
///   hash           c 1  token id modulo experts, weight 1 (Roller et al. 2021)
///   random         c k  k different experts by (global token, step, layer), weight 1, token order
std::vector<Gate> make_gates() {
  std::vector<Gate> gates;
  gates.push_back(filling_gate("switch", "each token's best expert, slots in token order",
                               GateScope::kToken, WeightRule::kProb, 1));
  gates.back().takes_best = true;
  gates.push_back(filling_gate("top_k",
                               "the k best experts, all first choices before all second choices",
                               GateScope::kBatch, WeightRule::kRenorm, 0));
  gates.back().takes_best = true;
  gates.push_back(
      filling_gate("top2", "top_k with k = 2", GateScope::kBatch, WeightRule::kRenorm, 2));
  gates.back().takes_best = true;
  gates.push_back(filling_gate("top2_c1", "top2 with half the slots", GateScope::kBatch,
                               WeightRule::kRenorm, 2));
  gates.back().capacity = [](int64_t tokens, int64_t experts, int64_t, double factor) {
    return capacity_of("top2_c1", 1, 2, tokens, experts, factor);
  };
  gates.back().full_at = 2;  // there are two choices for each slot
  gates.push_back(choice_gate("bpr",
                              "each token's best expert, slots in order of the score, best first",
                              GateScope::kBatch, WeightRule::kProb, 1, route_bpr));
  gates.back().takes_best = true;
  gates.push_back(choice_gate("expert_choice",
                              "every expert takes the tokens that score best for it",
                              GateScope::kBatch, WeightRule::kProb, 1, route_expert_choice));
  gates.back().code = AssignmentCode::kTaken;
  gates.back().chooser = Chooser::kExpert;
  gates.back().full_at = std::numeric_limits<double>::infinity();
  gates.back().columns = [](int64_t, int64_t experts) { return experts; };
  gates.push_back(choice_gate("hash", "token id modulo experts, slots in token order",
                              GateScope::kToken, WeightRule::kOne, 1, route_hash));
  gates.back().chooser = Chooser::kRule;
  gates.push_back(choice_gate("random", "k different experts at random, slots in token order",
                              GateScope::kToken, WeightRule::kOne, 0, route_random));
  gates.back().chooser = Chooser::kRule;
  check_rows("gates", gates);
  for (const Gate& gate : gates) {
    MOE_CHECK(gate.columns && gate.capacity && gate.route,
              "gate '{}': its members columns, capacity and route must all be set to functions",
              gate.name);
  }
  return gates;
}

}  // namespace

GateScope scope_of(const Gate& gate, double factor) {
  return factor <= 0 && gate.token_scope_without_capacity ? GateScope::kToken : gate.scope;
}

const std::vector<Gate>& builtin_gates() {
  static const std::vector<Gate> gates = make_gates();
  return gates;
}

const Gate& builtin_gate(std::string_view name) {
  std::vector<std::string> names;
  for (const Gate& gate : builtin_gates()) {
    if (gate.name == name) return gate;
    names.push_back(gate.name);
  }
  throw UserError(unknown_name("gate", name, std::move(names)));
}

}  // namespace moe
