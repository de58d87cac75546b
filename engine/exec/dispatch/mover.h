// Moves rows of tokens to the ranks of their experts and back, as a Route says, with real bytes
// between ranks of the CPU: deduplicated, forwarded, and added on the way back.
#pragma once

#include <functional>
#include <optional>

#include "engine/comm/communicator.h"
#include "engine/dispatch/rows.h"

namespace moe::dispatch {

/// Writes n numbers as the payload of a row, and reads them. fp32 stands for numbers of type T.
template <class T>
void encode(Wire wire, int64_t n, const T* values, void* row);
template <class T>
void decode(Wire wire, int64_t n, const void* row, T* values);

/// One rank's part in an exchange. All ranks make the same calls in the same order. A row on the
/// wire begins with its payload, which is rounded once where it is made, and in fp32 not at all: T,
/// float or double, is the type of numbers before and after. The rest of its bytes, for weights and
/// indices, are zeros: all ranks know the choices, as a gate's all-gather tells them.
template <class T>
class Mover {
 public:
  /// Numbers of tokens or slots: [rows, hidden].
  using Values = std::vector<T>;
  using Own = std::function<const T*(int64_t token, int32_t slot)>;
  using Take = std::function<void(int64_t token, int32_t slot, const T* values)>;
  using Make = std::function<void(int64_t token, int32_t slot, T* values)>;
  using Add = std::function<void(int64_t token, std::span<const int32_t> slots, const T* values)>;

  /// comm has all ranks of the exchange; `what` names the calls in errors. What it refers to must
  /// outlive it.
  Mover(const Route& route, const Exchange& exchange, const Choices& choices, Communicator& comm,
        std::string what);

  /// own(token, slot): the values of a token of this rank for its slot; a row of several slots has
  /// those of the first. Calls take() for each slot that this rank
  /// computes; the values are those that came over the wire.
  void dispatch(const Own& own, const Take& take);
  /// make(): sets the output of a slot that this rank computes. Calls add() for each row that
  /// returns to a token of this rank, with the slots whose sum it is.
  void combine(const Make& make, const Add& add);

  /// Bytes handed to the transport for each other rank: [ranks].
  const std::vector<int64_t>& sent(Way way) const { return sent_[static_cast<size_t>(way)]; }
  /// From the post of the first hop to the end of the last.
  const CommTimes& times() const { return *times_; }

 private:
  using Bytes = std::vector<uint8_t>;
  int64_t row_bytes(Way way) const;
  /// Sends the rows of a hop that make(row, to) writes, and calls take(row, from) for those that
  /// come, in the order of the walk.
  void exchange(Way way, int64_t hop, const std::function<void(const Row&, uint8_t*)>& make,
                const std::function<void(const Row&, const uint8_t*)>& take);
  int64_t& at(const Row& row, int32_t slot);
  /// Adds to sum [hidden] the rows of the slots, each once, though several slots may share one.
  void add_rows(const Row& row, const Values& held, T* sum);

  const Route& route_;
  const Exchange& exchange_;
  const Choices& choices_;
  const Walk walk_;
  Communicator& comm_;
  const std::string what_;
  std::vector<int64_t> place_;  // [tokens, slots]: of a slot's row among those that the rank holds
  std::array<std::vector<int64_t>, 2> sent_;
  std::optional<CommTimes> times_;
};

}  // namespace moe::dispatch
