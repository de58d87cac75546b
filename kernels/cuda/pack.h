// Loads and stores of numbers in kernels, stored as float or bfloat16. In registers they are always
// floats: a bfloat16 is read exactly, and rounded once, when it is written. 16 bytes are moved at a
// time where alignment allows. Invariant: load_columns and store_columns move the columns that the
// caller names, whatever the address of the row, so the order of a row's sum does not depend on it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/bf16.h"

namespace moe::kernels::cuda {

/// Numbers of type T in 16 bytes, a "pack".
template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));
/// Number of adjacent columns that a thread adds before it moves on to columns further right. It
/// fixes the order of a row's sum.
template <class T>
constexpr int kSummed = std::is_same_v<T, float> ? 1 : kPack<T>;

template <int N>
struct Numbers {
  float at[N];
};
/// Returns f(0), f(1), ..., f(N - 1).
template <int N, class F>
__device__ Numbers<N> numbers(F f) {
  Numbers<N> all;
  for (int i = 0; i < N; ++i) all.at[i] = f(i);
  return all;
}

/// Returns the bits of to_bf16() of both; a GPU's NaN has no sign.
__device__ inline unsigned rounded_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const unsigned&>(pair);
}
__device__ inline unsigned rounded(float v) {
  return rounded_pair(v, 0);
}
/// Returns the numbers in `words`, each of which contains two bfloat16.
template <int N>
__device__ Numbers<N> unpacked(const unsigned* words) {
  return numbers<N>([&](int i) {
    return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  });
}

/// Loads N numbers from p; for N > 1, p must be aligned to 16 bytes and N a multiple of a pack.
template <int N>
__device__ Numbers<N> load(const float* p) {
  if constexpr (N == 1) {
    return {{*p}};
  } else {
    Numbers<N> all;
    for (int i = 0; i < N; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(p + i);
      all.at[i] = v.x;
      all.at[i + 1] = v.y;
      all.at[i + 2] = v.z;
      all.at[i + 3] = v.w;
    }
    return all;
  }
}
template <int N>
__device__ Numbers<N> load(const Bf16* p) {
  if constexpr (N == 1) {
    return {{__uint_as_float(unsigned{p->bits} << 16)}};
  } else {
    static_assert(N == kPack<Bf16>);
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    const unsigned words[] = {v.x, v.y, v.z, v.w};
    return unpacked<N>(words);
  }
}
/// Returns the N numbers at p + i, or zeros where p is null.
template <int N, class T>
__device__ Numbers<N> load_or_zero(const T* p, int64_t i) {
  return p ? load<N>(p + i) : Numbers<N>{};
}
template <int N>
__device__ void store(float* p, const Numbers<N>& v) {
  if constexpr (N == 1) {
    *p = v.at[0];
  } else {
    for (int i = 0; i < N; i += 4)
      *reinterpret_cast<float4*>(p + i) =
          make_float4(v.at[i], v.at[i + 1], v.at[i + 2], v.at[i + 3]);
  }
}
template <int N>
__device__ void store(Bf16* p, const Numbers<N>& v) {
  if constexpr (N == 1) {
    p->bits = static_cast<uint16_t>(rounded(v.at[0]));
  } else {
    static_assert(N == kPack<Bf16>);
    *reinterpret_cast<uint4*>(p) =
        make_uint4(rounded_pair(v.at[0], v.at[1]), rounded_pair(v.at[2], v.at[3]),
                   rounded_pair(v.at[4], v.at[5]), rounded_pair(v.at[6], v.at[7]));
  }
}

/// Returns the number of bytes from the last multiple of 16 to p.
template <class T>
__device__ unsigned bytes_off(const T* p) {
  return static_cast<unsigned>(reinterpret_cast<uintptr_t>(p) % 16);
}
/// Returns the pack at p, `off` bytes after a multiple of 16, from two aligned packs.
__device__ inline Numbers<kPack<Bf16>> load_between(const Bf16* p, unsigned off) {
  const auto* const from = reinterpret_cast<const uint4*>(p - off / sizeof(Bf16));
  const uint4 a = from[0], b = from[1];
  unsigned words[] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  if (off & 8)
    for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
  if (off & 4)
    for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
  if (off & 2)
    for (int i = 0; i < 4; ++i) words[i] = words[i] >> 16 | words[i + 1] << 16;
  return unpacked<kPack<Bf16>>(words);
}

/// Loads columns c to c + N - 1 (c < cols) of a row; columns after the last are `beyond`.
template <int N, class T>
__device__ Numbers<N> load_columns(const T* row, int64_t c, int64_t cols, float beyond) {
  if constexpr (N == 1) {
    return load<1>(row + c);
  } else {
    const unsigned off = bytes_off(row + c);
    if (off == 0 && c + N <= cols) return load<N>(row + c);
    if constexpr (std::is_same_v<T, Bf16>)
      if (off != 0 && c >= N && c + 2 * N <= cols) return load_between(row + c, off);
    return numbers<N>([&](int i) { return c + i < cols ? load<1>(row + c + i).at[0] : beyond; });
  }
}
/// Stores columns c to c + N - 1 of a row; columns after the last are not written.
template <int N, class T>
__device__ void store_columns(T* row, int64_t c, int64_t cols, const Numbers<N>& v) {
  if constexpr (N == 1) {
    store(row + c, v);
  } else if (bytes_off(row + c) == 0 && c + N <= cols) {
    store(row + c, v);
  } else {
    for (int i = 0; i < N; ++i)
      if (c + i < cols) store(row + c + i, Numbers<1>{{v.at[i]}});
  }
}

}  // namespace moe::kernels::cuda
