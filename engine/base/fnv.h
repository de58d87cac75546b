// The 64-bit FNV-1a hash of bytes: checksums of files that detect damage, but not forgery.
// Invariant: chained hashes give the same result as one hash of all bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moe {

constexpr uint64_t kFnvStart = 14695981039346656037ull;

/// Returns the hash of the preceding bytes followed by `data`. `so_far` is the hash of the
/// preceding bytes, or kFnvStart if there are none.
inline uint64_t fnv1a(uint64_t so_far, const void* data, size_t bytes) {
  const auto* const p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) so_far = (so_far ^ p[i]) * 1099511628211ull;
  return so_far;
}

}  // namespace moe
