#include <algorithm>
#include <limits>

#include "engine/base/errors.h"
#include "engine/routing/gate.h"

namespace moe {
namespace {

UserError no_token(int64_t t, int64_t tokens) {
  return user_error("gate: there is no token {}; tokens count from 1 to {}", t + 1, tokens);
}

/// Routing maps that own their arrays.
struct Routed {
  Routed(const GateInput& in, int64_t columns)
      : expert(size(in.tokens * columns)),
        choice_slot(size(in.tokens * columns)),
        slot_choice(size(in.experts * in.capacity)),
        counts(size(in.experts)),
        maps{in.tokens,          in.experts,         columns,      in.capacity, expert.data(),
             choice_slot.data(), slot_choice.data(), counts.data()} {}
  static size_t size(int64_t n) { return static_cast<size_t>(n); }

  std::vector<int32_t> expert, choice_slot, slot_choice, counts;
  RoutingMaps maps;
};

using Route = std::function<void(const GateInput&, RoutingBuilder&)>;

/// Routes tokens [0, cut), then the rest with the slots used so far. Throws UserError if a token
/// gets other experts than in `whole`, or a choice is dropped in only one of the two.
void check_parts(const Route& route, const GateInput& input, const Routed& whole, int64_t cut) {
  std::vector<int32_t> used;
  for (const int64_t first : {int64_t{0}, cut}) {
    GateInput in = input;
    in.tokens = first == 0 ? cut : input.tokens - cut;
    in.scores += first * input.experts;
    in.ids += first;
    in.first_token += first;
    const int64_t columns = whole.maps.columns;
    Routed part(in, columns);
    RoutingBuilder builder(part.maps, used);
    route(in, builder);
    for (int64_t i = 0; i < in.tokens * columns; ++i) {
      const int64_t at = first * columns + i;
      if (part.maps.expert[i] == whole.maps.expert[at] &&
          (part.maps.choice_slot[i] < 0) == (whole.maps.choice_slot[at] < 0)) {
        continue;
      }
      throw user_error(
          "scope = 'token' is declared, but token {} of {} is routed differently when the batch is "
          "routed in two parts; declare scope = 'batch' for a gate that needs the whole batch",
          at / columns + 1, input.tokens);
    }
    used = part.counts;
  }
}

}  // namespace

RoutingBuilder::RoutingBuilder(const RoutingMaps& maps, std::span<const int32_t> used_before)
    : maps_(maps), next_column_(static_cast<size_t>(maps.tokens)) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  MOE_CHECK(maps.tokens >= 0 && maps.experts >= 1 && maps.columns >= 1 && maps.capacity >= 0,
            "RoutingMaps: tokens = {} and capacity = {} must be at least 0, experts = {} and "
            "columns = {} at least 1",
            maps.tokens, maps.capacity, maps.experts, maps.columns);
  MOE_CHECK(
      maps.tokens * maps.columns <= kMax && maps.experts * maps.capacity <= kMax,
      "RoutingMaps: {} tokens with {} choices each and {} experts with {} slots each; the number "
      "of choices and the number of slots must each be at most {}",
      maps.tokens, maps.columns, maps.experts, maps.capacity, kMax);
  MOE_CHECK(
      used_before.empty() || static_cast<int64_t>(used_before.size()) == maps.experts,
      "RoutingBuilder: used_before has {} numbers, expected none or one for each of {} experts",
      used_before.size(), maps.experts);
  std::fill_n(maps_.counts, maps_.experts, 0);
  for (size_t e = 0; e < used_before.size(); ++e) {
    MOE_CHECK(
        used_before[e] >= 0 && used_before[e] <= maps.capacity,
        "RoutingBuilder: used_before of expert {} is {}, but must be between 0 and capacity = {}",
        e, used_before[e], maps.capacity);
    maps_.counts[e] = used_before[e];
  }
  before_.assign(maps_.counts, maps_.counts + maps_.experts);
  std::fill_n(maps_.expert, maps_.tokens * maps_.columns, -1);
  std::fill_n(maps_.choice_slot, maps_.tokens * maps_.columns, -1);
  if (!maps_.part && maps_.slot_choice != nullptr)
    std::fill_n(maps_.slot_choice, maps_.experts * maps_.capacity, -1);
}

bool RoutingBuilder::take(int64_t t, int64_t e) {
  if (t < 0 || t >= maps_.tokens) {
    throw no_token(t, maps_.tokens);
  }
  const int32_t* chosen = maps_.expert + t * maps_.columns;
  int32_t& column = next_column_[static_cast<size_t>(t)];
  while (column < maps_.columns && chosen[column] >= 0) ++column;
  return place(t, column, e);
}

bool RoutingBuilder::take_at(int64_t t, int64_t column, int64_t e) {
  if (t < 0 || t >= maps_.tokens) {
    throw no_token(t, maps_.tokens);
  }
  if (column < 0)
    throw user_error("gate: token {}: there is no choice {}; choices count from 1", t + 1,
                     column + 1);
  return place(t, column, e);
}

void RoutingBuilder::fill(std::span<const int32_t> choices, int64_t k,
                          std::span<const int32_t> order) {
  if (k < 1 || static_cast<int64_t>(choices.size()) != maps_.tokens * k) {
    throw user_error("gate: {} choices are given, expected tokens = {} times k = {}",
                     choices.size(), maps_.tokens, k);
  }
  if (static_cast<int64_t>(order.size()) > maps_.tokens) {
    throw user_error("gate: the order lists {} tokens, allowed: at most tokens = {}", order.size(),
                     maps_.tokens);
  }
  const int64_t count = order.empty() ? maps_.tokens : static_cast<int64_t>(order.size());
  for (int64_t j = 0; j < k; ++j) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = order.empty() ? i : order[static_cast<size_t>(i)];
      if (t < 0 || t >= maps_.tokens) {
        throw no_token(t, maps_.tokens);
      }
      const int32_t e = choices[static_cast<size_t>(t * k + j)];
      if (e != -1) place(t, j, e);
    }
  }
}

// Requires: t is in range and column is not negative.
bool RoutingBuilder::place(int64_t t, int64_t column, int64_t e) {
  if (e < 0 || e >= maps_.experts) {
    throw user_error("gate: there is no expert {}; experts count from 1 to {}", e + 1,
                     maps_.experts);
  }
  if (column >= maps_.columns) {
    throw user_error(
        "gate: token {} has more than {} choices, the most that a gate may make per token", t + 1,
        maps_.columns);
  }
  int32_t* chosen = maps_.expert + t * maps_.columns;
  if (chosen[column] >= 0) {
    throw user_error(
        "gate: choice {} of token {} is made already (expert {}); make each choice once, and list "
        "a token only once in an order",
        column + 1, t + 1, chosen[column] + 1);
  }
  if (std::find(chosen, chosen + maps_.columns, e) != chosen + maps_.columns) {
    throw user_error("gate: token {} chose expert {} twice", t + 1, e + 1);
  }
  if (scores_ != nullptr &&
      scores_[t * maps_.experts + e] == -std::numeric_limits<float>::infinity()) {
    throw user_error("gate: token {} chose expert {}, which is in none of its best groups", t + 1,
                     e + 1);
  }
  chosen[column] = static_cast<int32_t>(e);
  if (left(e) <= 0) return false;
  const int64_t choice = t * maps_.columns + column;
  const int64_t slot = e * maps_.capacity + maps_.counts[e]++;
  maps_.choice_slot[choice] = static_cast<int32_t>(slot);
  if (maps_.slot_choice != nullptr)
    maps_.slot_choice[slot] = static_cast<int32_t>(maps_.first_token * maps_.columns + choice);
  return true;
}

void RoutingBuilder::order_by_token() {
  for (int64_t e = 0; e < maps_.experts; ++e) {
    int32_t* const first = maps_.slot_choice + e * maps_.capacity + before_[static_cast<size_t>(e)];
    int32_t* const last = maps_.slot_choice + e * maps_.capacity + maps_.counts[e];
    if (std::is_sorted(first, last)) continue;
    std::sort(first, last);
    for (const int32_t* at = first; at != last; ++at) {
      maps_.choice_slot[*at - maps_.first_token * maps_.columns] =
          static_cast<int32_t>(at - maps_.slot_choice);
    }
  }
}

void check_token_scope(const Route& route, const GateInput& input, int64_t columns) {
  const int64_t binding = std::max<int64_t>(1, input.tokens * input.k / input.experts / 2);
  for (const int64_t capacity : {input.capacity, std::min(binding, input.capacity)}) {
    GateInput in = input;
    in.capacity = capacity;
    Routed whole(in, columns);
    RoutingBuilder all(whole.maps);
    route(in, all);
    for (const int64_t cut : {int64_t{1}, in.tokens / 3, in.tokens / 2, in.tokens - 1}) {
      if (cut > 0 && cut < in.tokens) check_parts(route, in, whole, cut);
    }
  }
}

}  // namespace moe
