// bfloat16 (the upper half of a float) as a type of 2 bytes for storing activations. It has no
// arithmetic: kernels convert it to float, which is exact, compute in float, and round once, to the
// nearest, when they write the result. The GPU's versions are in cuda/pack.h.
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

/// Rounds to the nearest bfloat16, and to the even one if two are equally near. A value beyond the
/// largest bfloat16 becomes infinity, a NaN stays a NaN with its sign, denormals are kept.
inline Bf16 to_bf16(float v) {
  const auto bits = std::bit_cast<uint32_t>(v);
  if (std::isnan(v)) return {static_cast<uint16_t>(bits >> 16 | 0x40U)};
  return {static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16)};
}

}  // namespace moe::kernels
