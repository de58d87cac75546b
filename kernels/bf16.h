// bfloat16: the upper half of a float, as a type of 2 bytes to store activations in. It has no
// arithmetic: kernels read it as a float (exactly) and round what they write, once, to the nearest.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace moe::kernels {

struct Bf16 {
  uint16_t bits;
};

inline float to_float(Bf16 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}
inline float to_float(float v) {
  return v;
}

/// The nearest, of two as near the even one; beyond the largest it is infinity, a NaN stays a NaN
/// with its sign, denormals are kept.
inline Bf16 to_bf16(float v) {
  const auto bits = std::bit_cast<uint32_t>(v);
  if (std::isnan(v)) return {static_cast<uint16_t>(bits >> 16 | 0x40U)};
  return {static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16)};
}

}  // namespace moe::kernels
