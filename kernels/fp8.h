// fp8 as e4m3 (OCP 8-bit floating point, 1.0: 448 is the largest number, no infinities), and blocks
// of 128 numbers with one scale, as rows travel in fp8.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace moe::kernels {

constexpr int64_t kFp8Block = 128;
constexpr float kFp8Largest = 448;

/// Rounds to the nearest number of e4m3, to the even one if two are equally near; beyond the
/// largest to the largest. NaN stays NaN.
inline uint8_t to_e4m3(float v) {
  const auto sign = static_cast<uint8_t>(std::bit_cast<uint32_t>(v) >> 31 << 7);
  if (std::isnan(v)) return sign | 0x7f;
  const float size = std::min(std::abs(v), kFp8Largest);
  const int exponent = std::max(size > 0 ? std::ilogb(size) : -6, -6);
  // Eighths of 2^exponent; a carry into the next exponent is a carry of the bits.
  const auto eighths = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  return sign | static_cast<uint8_t>((exponent + 6) * 8 + eighths);
}

inline float from_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, eighths = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::nanf("");
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(eighths), -9)
                                   : std::ldexp(static_cast<float>(8 + eighths), exponent - 10);
  return bits & 0x80 ? -size : size;
}

/// x [n], n a multiple of 128 -> codes [n] and scales [n / 128]: x is about code * scale, the
/// largest of a block 448 * scale.
inline void to_fp8_blocks(const float* x, int64_t n, uint8_t* codes, float* scales) {
  for (int64_t b = 0; b < n / kFp8Block; ++b) {
    float most = 0;
    for (int64_t i = b * kFp8Block; i < (b + 1) * kFp8Block; ++i) {
      most = std::max(most, std::abs(x[i]));
    }
    scales[b] = most > 0 ? most / kFp8Largest : 1;
    for (int64_t i = b * kFp8Block; i < (b + 1) * kFp8Block; ++i) {
      codes[i] = to_e4m3(x[i] / scales[b]);
    }
  }
}

}  // namespace moe::kernels
