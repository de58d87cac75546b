// Data with exact outputs, moved between threads of this process.
#pragma once

#include "engine/exec/dispatch/mover.h"

namespace moe::dispatch {

/// Sums over slots of the tokens of a rank, [tokens, hidden], from token `first` on.
template <class T>
typename Mover<T>::Add sums_of(std::vector<T>& sums, int64_t first, int64_t hidden) {
  return [&sums, first, hidden](int64_t token, std::span<const int32_t>, const T* values) {
    T* const sum = sums.data() + (token - first) * hidden;
    for (int64_t i = 0; i < hidden; ++i) sum[i] += values[i];
  };
}

/// Data with exact outputs: x[s][t][h] is one of -4, -2, -1, 0, 1, 2 and 4, expert e multiplies by
/// e mod 3 + 1, weights are 1, so that every dispatcher gives the same bits in bf16 and fp8. sent:
/// [ranks, ranks] by way; fnv1a: the hash of the outputs as int32, rank by rank.
struct Moved {
  std::array<std::vector<int64_t>, 2> sent;
  uint64_t fnv1a = 0;
};
/// Moves this data.
Moved move_exact(const Route& route, const Exchange& exchange, const Choices& choices);

}  // namespace moe::dispatch
