// Routing maps that own their arrays, and random scores with many ties, for the tests of routing.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/rng.h"
#include "engine/routing/gate.h"

namespace moe::test {

struct OwnedMaps {
  RoutingMaps maps;
  std::vector<int32_t> expert, choice_slot, slot_choice, counts;

  OwnedMaps(int64_t tokens, int64_t experts, int64_t columns, int64_t capacity)
      : expert(static_cast<size_t>(tokens * columns), 77),
        choice_slot(static_cast<size_t>(tokens * columns), 77),
        slot_choice(static_cast<size_t>(experts * capacity), 77),
        counts(static_cast<size_t>(experts), 77) {
    maps = {tokens,
            experts,
            columns,
            capacity,
            expert.data(),
            choice_slot.data(),
            slot_choice.data(),
            counts.data()};
  }
  OwnedMaps(const OwnedMaps&) = delete;

  int32_t expert_of(int64_t t, int64_t j) const {
    return expert[static_cast<size_t>(t * maps.columns + j)];
  }
  bool kept(int64_t t, int64_t j) const {
    return choice_slot[static_cast<size_t>(t * maps.columns + j)] >= 0;
  }
  /// The tokens of expert e by position.
  std::vector<int32_t> tokens_of(int64_t e) const {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < counts[static_cast<size_t>(e)]; ++i) {
      const int32_t choice = slot_choice[static_cast<size_t>(e * maps.capacity + i)];
      tokens.push_back(choice / static_cast<int32_t>(maps.columns));
    }
    return tokens;
  }
};

/// [tokens, experts] with values 0, 1/levels, ... so that ties abound; expert `starved` (if any)
/// always scores -1.
inline std::vector<float> tied_scores(int64_t tokens, int64_t experts, int levels, uint64_t seed,
                                      int64_t starved = -1) {
  Rng rng(seed);
  std::vector<float> scores;
  for (int64_t i = 0; i < tokens * experts; ++i) {
    const float score = static_cast<float>(rng.below(levels)) / static_cast<float>(levels);
    scores.push_back(i % experts == starved ? -1.0f : score);
  }
  return scores;
}

}  // namespace moe::test
