// FNV-1a 64 over bytes: checksums of files against damage, not against forgery.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moe {

constexpr uint64_t kFnvStart = 14695981039346656037ull;

/// Chained: `so_far` is kFnvStart, or the hash of the bytes before.
inline uint64_t fnv1a(uint64_t so_far, const void* data, size_t bytes) {
  const auto* const p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) so_far = (so_far ^ p[i]) * 1099511628211ull;
  return so_far;
}

}  // namespace moe
