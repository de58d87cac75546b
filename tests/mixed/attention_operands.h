// The operands of fused attention, moved to another place or another type for one call. What lies
// in one tensor qkv is moved as one.
#pragma once

#include <type_traits>

#include "kernels/kernels.h"

namespace moe::test {

/// Whether k lies in the rows of q, so that all three are columns of one tensor.
template <class T>
bool in_one_tensor(const T* q, const T* k, kernels::AttentionShape s) {
  return k > q && k - q < s.q_pitch;
}

/// move(first, n) returns the new place of n numbers.
template <class T, class Move>
auto moved(kernels::AttentionIn<T> in, kernels::AttentionShape s, Move move) {
  const int64_t rows = s.batch * s.seq;
  const auto* const q = move(in.q, rows * s.q_pitch);
  kernels::AttentionIn<std::decay_t<decltype(*q)>> there = {q};
  const bool one = in_one_tensor(in.q, in.k, s);
  there.k = one ? q + (in.k - in.q) : move(in.k, rows * s.k_pitch);
  there.v = one ? q + (in.v - in.q) : move(in.v, rows * s.v_pitch);
  there.sinks = in.sinks ? move(in.sinks, s.heads) : nullptr;
  return there;
}
template <class T, class Move>
auto moved(kernels::AttentionOut<T> out, kernels::AttentionShape s, Move move) {
  const int64_t rows = s.batch * s.seq;
  auto* const dq = move(out.dq, rows * s.q_pitch);
  const bool one = in_one_tensor(out.dq, out.dk, s);
  return kernels::AttentionOut<std::decay_t<decltype(*dq)>>{
      dq, one ? dq + (out.dk - out.dq) : move(out.dk, rows * s.k_pitch),
      one ? dq + (out.dv - out.dq) : move(out.dv, rows * s.v_pitch)};
}

}  // namespace moe::test
