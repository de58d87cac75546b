// Counter-based random numbers: a value depends only on (index, stream), so any rank or thread can
// draw any element in any order. The generator is the 32-bit finalizer of MurmurHash3 applied to
// both numbers, each multiplied by an odd constant. The reference model is initialised from it, so
// tests depend on the exact values. Choices of experts by popularity are in routing/, not here.
#pragma once

#include <cstdint>

namespace moe {

constexpr uint32_t mix32(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  x ^= x >> 16;
  return x;
}

/// The hash of `index` and `stream`; all arithmetic is modulo 2^32.
constexpr uint32_t hash32(uint64_t index, uint64_t stream) {
  return mix32(static_cast<uint32_t>(index + 1) * 0x9E3779B1u +
               static_cast<uint32_t>(stream + 1) * 0x85EBCA77u);
}

/// Returns an integer in [0, 2^24).
constexpr uint32_t random24(uint64_t index, uint64_t stream) {
  return hash32(index, stream) >> 8;
}

/// A generator that draws the values of one stream in sequence, for tests and seeded policies.
class Rng {
 public:
  explicit Rng(uint64_t stream) : stream_(stream) {}
  uint32_t next() { return hash32(index_++, stream_); }
  /// Uniform in [0, 1), in steps of 2^-24.
  double uniform() { return random24(index_++, stream_) * 0x1p-24; }
  /// Uniform in [0, n). Requires n > 0.
  int64_t below(int64_t n) { return static_cast<int64_t>(uniform() * static_cast<double>(n)); }

 private:
  uint64_t stream_;
  uint64_t index_ = 0;
};

}  // namespace moe
