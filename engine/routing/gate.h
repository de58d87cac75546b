// A gate decides which experts per token goes to and which tokens find a place. A gate's function
// sees the scores of one rank's tokens and takes places through RoutingBuilder, which alone counts
// used capacity and drops, so that a gate (built in or Lua's) cannot break the distributed
// algorithm. The weights of the choices and their gradient follow from the declared rules, not from
// the gate.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"

namespace moe {

/// kToken: a token's choice depends on itself and the capacity used so far, so the batch may be cut
/// and the used capacity handed on. kBatch: the gate needs the whole batch.
enum class GateScope : uint8_t { kToken, kBatch };
/// Who chooses: a token by its scores, an expert among the tokens by theirs, or a rule that scores
/// play no part in.
enum class Chooser : uint8_t { kToken, kExpert, kRule };
/// How an assignment is coded in checksums: a byte per choice (expert | dropped ? 0x80 : 0), or a
/// byte per expert (1 where it took the token).
enum class AssignmentCode : uint8_t { kChoices, kTaken };

/// What a gate sees: tokens of one rank in token order.
struct GateInput {
  int64_t tokens = 0;
  int64_t experts = 0;
  int64_t k = 1;
  int64_t capacity = 0;           // places per expert on this rank
  const float* scores = nullptr;  // [tokens, experts], after the score rule, bias added
  const int32_t* ids = nullptr;   // [tokens] input token ids
  int64_t first_token = 0;        // global number of token 0, for counter-based randomness
  int64_t step = 0;
  int64_t layer = 0;
};

/// The index maps of one rank's routing, owned by the caller. K = columns = choices per token.
/// The batch may be routed in parts: slots and choices are numbered through the whole batch, and
/// all parts write one slot_choice, each the places that it takes.
struct RoutingMaps {
  int64_t tokens = 0, experts = 0, columns = 0, capacity = 0;
  int32_t* expert = nullptr;       // [tokens, K]: the expert chosen (also when dropped), -1 none
  int32_t* choice_slot = nullptr;  // [tokens, K]: e * capacity + position, -1 dropped or none
  int32_t* slot_choice = nullptr;  // [experts, capacity]: token * K + column, -1 empty
  int32_t* counts = nullptr;       // [experts]: places used by this part and those before it
  int64_t first_token = 0;         // of this part, in slot_choice
  bool part = false;               // places that this part does not take are left as they are
};

/// Fills RoutingMaps. A place is taken in call order: positions of an expert are 0, 1, 2, ...; a
/// choice that is dropped reserves none. GShard lets dropped first choices count in the positions
/// of second choices; the tokens kept are the same, since an expert that dropped a choice is full.
class RoutingBuilder {
 public:
  /// Clears the maps. `used_before` [experts] is what earlier parts of the batch took (empty:
  /// nothing): this part's positions begin there.
  /// Requires: maps' arrays have their full sizes; every slot and choice has an int32 number.
  explicit RoutingBuilder(const RoutingMaps& maps, std::span<const int32_t> used_before = {});
  /// Places left at expert e.
  int64_t left(int64_t e) const { return maps_.capacity - maps_.counts[e]; }
  /// Token t asks for a place at expert e as its next choice. Returns whether it was kept; a choice
  /// beyond capacity is recorded as dropped. Throws UserError for a token, expert or number of
  /// choices out of range, or an expert that the token already chose.
  bool take(int64_t t, int64_t e);
  /// As take, into a given column, which must be free. take fills the columns that are left.
  bool take_at(int64_t t, int64_t column, int64_t e);
  /// GShard order: choice 0 of every token, then choice 1 of every token, and so on, tokens in the
  /// given order (empty: 0, 1, 2, ...). choices [tokens, k], -1 for none; a token that `order`
  /// leaves out is not routed. Throws as take does, and UserError when a length does not fit.
  void fill(std::span<const int32_t> choices, int64_t k, std::span<const int32_t> order = {});
  /// Numbers the places of each expert by token, whoever took one first: the tokens of a part of
  /// the batch then hold neighbouring rows, whatever the gate. Call when the routing is complete.
  void order_by_token();
  const RoutingMaps& maps() const { return maps_; }

 private:
  bool place(int64_t t, int64_t column, int64_t e);

  RoutingMaps maps_;
  std::vector<int32_t> before_;       // [experts], the earlier parts'
  std::vector<int32_t> next_column_;  // [tokens], no free column lies before it
};

struct Gate {
  std::string name;
  std::string doc;
  GateScope scope = GateScope::kToken;
  kernels::ScoreRule scores = kernels::ScoreRule::kSoftmax;
  kernels::WeightRule weight = kernels::WeightRule::kProb;
  AssignmentCode code = AssignmentCode::kChoices;
  Chooser chooser = Chooser::kToken;
  /// 0: k is the model's; otherwise the gate fixes it (switch 1, top2 2).
  int64_t fixed_k = 0;
  /// Choices a token may have: k, or experts for expert choice.
  std::function<int64_t(int64_t k, int64_t experts)> columns;
  /// Places an expert and rank, for buffers. factor <= 0: no capacity limit (every token fits).
  /// Throws UserError when tokens, experts or factor make no sense.
  std::function<int64_t(int64_t tokens, int64_t experts, int64_t k, double factor)> capacity;
  /// Throws RunError when a score that the gate reads is NaN. Requires: scores, or ids for hash.
  std::function<void(const GateInput&, RoutingBuilder&)> route;
  /// The capacity factor up to which balanced routing fills every slot; infinite: whatever it is.
  double full_at = 1;
  /// kBatch for the sake of capacity alone: where every token fits, the gate is kToken.
  bool token_scope_without_capacity = false;
};

/// The scope of a gate under a capacity factor (<= 0: no limit).
GateScope scope_of(const Gate& gate, double factor);

/// Routes the tokens as a whole and in two parts that hand on the places used, cut at several
/// tokens, with the given capacity and with one that binds. Throws UserError naming the first token
/// that is routed otherwise: the gate is not of token scope.
void check_token_scope(const std::function<void(const GateInput&, RoutingBuilder&)>& route,
                       const GateInput& input, int64_t columns);

/// The built-in gates, listed with their sources in gates.cpp; equal scores go to the lower expert.
const std::vector<Gate>& builtin_gates();
/// Throws UserError with the nearest name.
const Gate& builtin_gate(std::string_view name);

/// weight[t,j] by the rule from scores [tokens, experts]; 0 where the choice has no slot. kRenorm
/// divides by the sum over the token's choices before dropping. T is float or double.
template <class T>
void gate_weights(T* weight, const T* scores, const RoutingMaps& maps, kernels::WeightRule rule);

/// One rank's part of the FNV-1a 64 checksum of assignments, chained over ranks in order. A
/// choice's byte holds the low 8 bits of the expert; 255 stands for no choice.
constexpr uint64_t kChecksumStart = 14695981039346656037ull;
uint64_t assignment_checksum(uint64_t so_far, const RoutingMaps& maps, AssignmentCode code);

/// Choices without a slot; for kTaken, tokens taken by no expert.
int64_t dropped(const RoutingMaps& maps, AssignmentCode code);

}  // namespace moe
