// Moves rows of tokens to the ranks of their experts and back, as a Route says, with real bytes
// between ranks of the CPU: deduplicated, forwarded, and added on the way back.
#pragma once

#include <functional>

#include "engine/comm/communicator.h"
#include "engine/dispatch/rows.h"

namespace moe::dispatch {

/// Numbers of tokens or choices of one rank: [rows, hidden].
using Values = std::vector<float>;

/// One rank's part in an exchange. All ranks make the same calls in the same order. A row on the
/// wire begins with its payload, which is rounded once where it is made; the rest of its bytes, for
/// weights and indices, are zeros: all ranks know the choices, as a gate's all-gather tells them.
class Mover {
 public:
  /// comm has all ranks of the exchange. What it refers to must outlive it.
  Mover(const Route& route, const Exchange& exchange, const Choices& choices, Communicator& comm);

  /// x: the rank's own tokens. Calls to(token, slot, values [hidden]) for each slot that this rank
  /// computes; the values are those that came over the wire.
  void dispatch(const Values& x,
                const std::function<void(int64_t token, int32_t slot, const float*)>& to);
  /// from(token, slot, values): sets the output of a slot that this rank computes. Returns the sums
  /// over slots of the rank's own tokens, rounded to the type on the wire.
  Values combine(const std::function<void(int64_t token, int32_t slot, float*)>& from);

  /// Bytes handed to the transport for each other rank: [ranks].
  const std::vector<int64_t>& sent(Way way) const { return sent_[static_cast<size_t>(way)]; }

 private:
  using Bytes = std::vector<uint8_t>;
  /// Sends the rows of a hop that make(row, to) writes, and calls take(row, from) for those that
  /// come, in the order of the walk.
  void exchange(Way way, int64_t hop, const std::function<void(const Row&, uint8_t*)>& make,
                const std::function<void(const Row&, const uint8_t*)>& take);
  void encode(Way way, const float* values, uint8_t* row) const;
  void decode(Way way, const uint8_t* row, float* values) const;
  int64_t& at(const Row& row, int32_t slot);
  /// Adds to sum [hidden] the rows of the slots, each once, though several slots may share one.
  void add_rows(const Row& row, const Values& held, float* sum);

  const Route& route_;
  const Exchange& exchange_;
  const Choices& choices_;
  const Walk walk_;
  Communicator& comm_;
  std::vector<int64_t> place_;  // [tokens, slots]: of a slot's row among those that the rank holds
  std::array<std::vector<int64_t>, 2> sent_;
};

/// Data with exact outputs: x[s][t][h] is one of -4, -2, -1, 0, 1, 2 and 4, expert e multiplies by
/// e mod 3 + 1, weights are 1, so that every dispatcher gives the same bits in bf16 and fp8. sent:
/// [ranks, ranks] by way; fnv1a: the hash of the outputs as int32, rank by rank.
struct Moved {
  std::array<std::vector<int64_t>, 2> sent;
  uint64_t fnv1a = 0;
};
/// Moves this data between threads of this process.
Moved move_exact(const Route& route, const Exchange& exchange, const Choices& choices);

}  // namespace moe::dispatch
