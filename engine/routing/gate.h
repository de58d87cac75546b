// A gate decides which experts a token goes to and which tokens find a place. A gate's function sees
// the scores of one rank's tokens and takes places through RoutingBuilder, which alone counts used
// capacity and drops, so that a gate (built in or Lua's) cannot break the distributed algorithm.
// The weights of the choices and their gradient follow from the declared rules, not from the gate.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"

namespace moe {

/// kToken: a token's choice depends on itself and the capacity used so far, so the batch may be cut
/// and the used capacity handed on. kBatch: the gate needs the whole batch.
enum class GateScope : uint8_t { kToken, kBatch };
/// How an assignment is coded in checksums: a byte a choice (expert | dropped ? 0x80 : 0), or a byte
/// an expert (1 where it took the token).
enum class AssignmentCode : uint8_t { kChoices, kTaken };

/// What a gate sees: tokens of one rank in token order.
struct GateInput {
  int64_t tokens = 0;
  int64_t experts = 0;
  int64_t k = 1;
  int64_t capacity = 0;          // places an expert on this rank
  const float* scores = nullptr; // [tokens, experts], after the score rule
  const int32_t* ids = nullptr;  // [tokens] input token ids
  int64_t first_token = 0;       // global number of token 0, for counter-based randomness
  int64_t step = 0;
  int64_t layer = 0;
};

/// The index maps of one rank's routing, owned by the caller. K = columns = choices a token.
struct RoutingMaps {
  int64_t tokens = 0, experts = 0, columns = 0, capacity = 0;
  int32_t* expert = nullptr;       // [tokens, K]: the expert chosen (also when dropped), -1 none
  int32_t* choice_slot = nullptr;  // [tokens, K]: e * capacity + position, -1 dropped or none
  int32_t* slot_choice = nullptr;  // [experts, capacity]: token * K + column, -1 empty
  int32_t* counts = nullptr;       // [experts]: places used, at most capacity
};

/// Fills RoutingMaps. A place is taken in call order: positions of an expert are 0, 1, 2, ...
class RoutingBuilder {
 public:
  /// Clears the maps. Requires: maps' arrays have their full sizes.
  explicit RoutingBuilder(const RoutingMaps& maps);
  /// Places left at expert e.
  int64_t left(int64_t e) const { return maps_.capacity - used_[static_cast<size_t>(e)]; }
  /// Token t asks for a place at expert e as its next choice. Returns whether it was kept; a choice
  /// beyond capacity is recorded as dropped. Throws UserError for a token, expert or number of
  /// choices out of range, or an expert that the token already chose.
  bool take(int64_t t, int64_t e);
  /// As take, into a given column.
  bool take_at(int64_t t, int64_t column, int64_t e);
  /// Like take with first choices counted even when over capacity is up to the gate: positions that
  /// a dropped choice would have taken are not reserved.
  const RoutingMaps& maps() const { return maps_; }

 private:
  RoutingMaps maps_;
  std::vector<int64_t> used_;
  std::vector<int32_t> next_column_;
};

struct Gate {
  std::string name;
  std::string doc;
  GateScope scope = GateScope::kToken;
  kernels::ScoreRule scores = kernels::ScoreRule::kSoftmax;
  kernels::WeightRule weight = kernels::WeightRule::kProb;
  AssignmentCode code = AssignmentCode::kChoices;
  /// 0: k is the model's; otherwise the gate fixes it (switch 1, top2 2).
  int64_t fixed_k = 0;
  /// Choices a token may have: k, or experts for expert choice.
  std::function<int64_t(int64_t k, int64_t experts)> columns;
  /// Places an expert and rank, for buffers. factor <= 0: no capacity limit (every token fits).
  /// Throws UserError when tokens, experts or factor make no sense.
  std::function<int64_t(int64_t tokens, int64_t experts, int64_t k, double factor)> capacity;
  std::function<void(const GateInput&, RoutingBuilder&)> route;
};

/// The built-in gates: switch, top_k, top2, top2_c1, bpr, expert_choice, hash, random.
const std::vector<Gate>& builtin_gates();
/// Throws UserError with the nearest name.
const Gate& builtin_gate(std::string_view name);

/// weight[t,j] by the rule from scores [tokens, experts]; 0 where the choice has no slot. kRenorm
/// divides by the sum over the token's choices before dropping.
template <class T>
void gate_weights(T* weight, const T* scores, const RoutingMaps& maps, kernels::WeightRule rule);

/// One rank's part of the FNV-1a 64 checksum of assignments, chained over ranks in order.
constexpr uint64_t kChecksumStart = 14695981039346656037ull;
uint64_t assignment_checksum(uint64_t so_far, const RoutingMaps& maps, AssignmentCode code);

/// Choices without a slot; for kTaken, tokens taken by no expert.
int64_t dropped(const RoutingMaps& maps, AssignmentCode code);

}  // namespace moe
