// A gate decides to which experts each token goes and which tokens get a slot. The function of a
// gate receives the scores of one rank's tokens and takes slots through RoutingBuilder. Invariant:
// only RoutingBuilder counts used capacity and drops, so no gate (built in or Lua) can break the
// distributed algorithm. Weights of choices and their gradient follow from the declared rules, not
// from the gate's function. Helpers for gates are in primitives.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/routing/expert_groups.h"
#include "kernels/gate_rules.h"

namespace moe {

/// kToken: the choice of a token depends on this token and the slots used so far, so the batch may
/// be cut; each part then gets the number of slots in use. kBatch: the gate needs the whole batch.
enum class GateScope : uint8_t { kToken, kBatch };
/// What makes a choice: a token by its scores, an expert by the scores of the tokens, or a rule
/// that does not use scores.
enum class Chooser : uint8_t { kToken, kExpert, kRule };
/// How checksums encode an assignment: a byte per choice (expert; bit 0x80 set if dropped), or a
/// byte per expert (1 when the expert took the token).
enum class AssignmentCode : uint8_t { kChoices, kTaken };

/// The input of a gate: the tokens of one rank in token order.
struct GateInput {
  int64_t tokens = 0;
  int64_t experts = 0;
  int64_t k = 1;
  int64_t capacity = 0;  // slots per expert on this rank
  /// [tokens, experts], after the score rule, with the bias added; -infinity for an expert that the
  /// token cannot choose.
  const float* scores = nullptr;
  const int32_t* ids = nullptr;  // [tokens], input token ids
  int64_t first_token = 0;       // global number of token 0, for counter-based randomness
  int64_t step = 0;
  int64_t layer = 0;         // the model's block, from 0; blocks without experts count too
  ExpertGroups groups = {};  // for a gate that puts other scores in the place of `scores`
  /// Set to true by a gate that reads first_token for other ends than randomness, and so may route
  /// the tokens of each rank in another way; null where nobody asks.
  bool* reads_source = nullptr;
};

/// The index maps of one rank's routing, owned by the caller. K = columns = most choices per token.
/// A batch may be routed in parts: slots and choices are numbered over the whole batch, and all
/// parts share one slot_choice, in which each part writes the slots that it takes.
struct RoutingMaps {
  int64_t tokens = 0, experts = 0, columns = 0, capacity = 0;
  int32_t* expert = nullptr;       // [tokens, K]: the chosen expert (also when dropped), -1: none
  int32_t* choice_slot = nullptr;  // [tokens, K]: e * capacity + position, -1: dropped or none
  // [experts, capacity]: token * K + column, -1: empty. Null where only counts are needed.
  int32_t* slot_choice = nullptr;
  int32_t* counts = nullptr;  // [experts]: slots used by this part and the parts before it
  int64_t first_token = 0;    // number of this part's first token, for slot_choice
  bool part = false;          // whether slots keep their content unless this part takes them
};

/// Fills RoutingMaps. Slots are taken in call order: positions of an expert are 0, 1, 2, ...; a
/// dropped choice reserves none. (In GShard dropped first choices count in the positions of second
/// choices. The same tokens are kept, because an expert that dropped a choice is full.)
/// Tokens, choices and experts count from 0 here, and from 1 in the errors, which authors of gates
/// in Lua read.
class RoutingBuilder {
 public:
  /// Clears the maps (slot_choice only if !maps.part). used_before [experts]: slots taken by
  /// earlier parts of the batch (empty: none); the positions of this part begin there. Requires:
  /// the maps' arrays have their full sizes, and the numbers of all slots and choices fit in int32.
  explicit RoutingBuilder(const RoutingMaps& maps, std::span<const int32_t> used_before = {});
  /// From now on refuses choices of experts whose score [tokens, experts] is -infinity; null: none.
  /// The scores must stay until the last choice.
  void limit(const float* scores) { scores_ = scores; }
  /// Returns the number of free slots of expert e.
  int64_t left(int64_t e) const { return maps_.capacity - maps_.counts[e]; }
  /// Requests a slot of expert e for the next choice of token t. Returns whether it got one; a
  /// choice beyond the capacity is recorded as dropped. Throws UserError for a token, expert or
  /// number of choices out of range, and for an expert that the token has already chosen.
  bool take(int64_t t, int64_t e);
  /// Like take, for the given column; also throws UserError if the column has a choice already.
  /// take fills the columns that remain free.
  bool take_at(int64_t t, int64_t column, int64_t e);
  /// Takes slots in GShard order: choice 0 of every token, then choice 1 of every token, and so on,
  /// tokens in the given order (empty: 0, 1, 2, ...). choices: [tokens, k], -1: none. Tokens that
  /// are not in `order` are not routed. Throws like take_at, and UserError for wrong lengths.
  void fill(std::span<const int32_t> choices, int64_t k, std::span<const int32_t> order = {});
  /// Renumbers the slots of each expert by token, whichever token took its slot first, so that the
  /// tokens of a part of the batch hold adjacent rows with any gate. Call it when the routing is
  /// complete. Requires: slot_choice is not null.
  void order_by_token();
  const RoutingMaps& maps() const { return maps_; }

 private:
  bool place(int64_t t, int64_t column, int64_t e);

  RoutingMaps maps_;
  const float* scores_ = nullptr;
  std::vector<int32_t> before_;       // [experts], slots taken by earlier parts
  std::vector<int32_t> next_column_;  // [tokens], all columns before this one are in use
};

struct Gate {
  std::string name;
  std::string doc;
  GateScope scope = GateScope::kToken;
  kernels::ScoreRule scores = kernels::ScoreRule::kSoftmax;
  kernels::WeightRule weight = kernels::WeightRule::kProb;
  AssignmentCode code = AssignmentCode::kChoices;
  Chooser chooser = Chooser::kToken;
  /// 0: k is set by the model; otherwise the gate fixes it (switch: 1, top2: 2).
  int64_t fixed_k = 0;
  /// Returns the most choices per token: the number of experts for gate expert_choice; for others
  /// fixed_k, or k if fixed_k is 0.
  std::function<int64_t(int64_t k, int64_t experts)> columns;
  /// Returns the slots per expert and rank, for buffers. factor <= 0: no capacity limit (every
  /// token fits). Throws UserError for invalid tokens, experts, k or factor.
  std::function<int64_t(int64_t tokens, int64_t experts, int64_t k, double factor)> capacity;
  /// Chooses experts and takes slots for all tokens of the input. Throws RunError when a score that
  /// the gate reads is NaN. Requires: scores is not null (gate hash: ids is not null).
  std::function<void(const GateInput&, RoutingBuilder&)> route;
  /// The largest capacity factor with which balanced routing fills every slot; infinite: any.
  double full_at = 1;
  /// true: the gate is kBatch only because of the capacity; without a limit it is kToken.
  bool token_scope_without_capacity = false;
  /// Whether a token's choices are the k experts with its best scores, and the capacity is top_k's.
  bool takes_best = false;
  /// Whether `route` is RoutingBuilder::fill() of topk_rows(), with all columns in use.
  bool fills_best = false;
};

/// Returns the scope of a gate under a capacity factor (<= 0: no limit).
GateScope scope_of(const Gate& gate, double factor);

/// Routes the tokens as a whole and in two parts (the second with the slots that the first used),
/// cut at several tokens, with the given capacity and with one that drops tokens.
/// Throws UserError naming the first token that is routed differently: then the gate is not of
/// token scope.
void check_token_scope(const std::function<void(const GateInput&, RoutingBuilder&)>& route,
                       const GateInput& input, int64_t columns);

/// Returns the built-in gates; gates.cpp lists their papers. Of equal scores the lower expert wins;
/// where tokens are compared, the lower token.
const std::vector<Gate>& builtin_gates();
/// Returns the gate of this name. Throws UserError, which lists the names, when there is none.
const Gate& builtin_gate(std::string_view name);

/// Computes weight[t,j] by the rule from scores [tokens, experts], times `scale`; 0 for a choice
/// without a slot. kRenorm divides by the sum over all choices of the token, dropped ones included.
/// T is float or double.
template <class T>
void gate_weights(T* weight, const T* scores, const RoutingMaps& maps, kernels::WeightRule rule,
                  T scale = 1);

/// Returns the FNV-1a 64 checksum `so_far` (of the ranks before; first kChecksumStart) continued
/// with one rank's assignments. A choice's byte has the low 8 bits of the expert; 255: no choice.
constexpr uint64_t kChecksumStart = 14695981039346656037ull;
uint64_t assignment_checksum(uint64_t so_far, const RoutingMaps& maps, AssignmentCode code);

/// Returns the number of choices without a slot; for kTaken the number of tokens without any slot.
int64_t dropped(const RoutingMaps& maps, AssignmentCode code);

}  // namespace moe
