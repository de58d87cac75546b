// What GCC has and clang has not, for the vectors of kernels/cpu/fast_simd.h. No loader computes
// with them; they have to compile and link.
#pragma once

template <class V, class I>
inline V __builtin_shuffle(V a, I lanes) {
  constexpr int kLanes = sizeof(V) / sizeof(a[0]);
  V out;
  for (int i = 0; i < kLanes; ++i) out[i] = a[lanes[i] & (kLanes - 1)];
  return out;
}

template <class V, class I>
inline V __builtin_shuffle(V a, V b, I lanes) {
  constexpr int kLanes = sizeof(V) / sizeof(a[0]);
  V out;
  for (int i = 0; i < kLanes; ++i) {
    const int lane = lanes[i] & (2 * kLanes - 1);
    out[i] = lane < kLanes ? a[lane] : b[lane - kLanes];
  }
  return out;
}
