// A count or number, which is signed here, as an index of a standard container.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moe {

/// Requires: i >= 0.
constexpr size_t index(int64_t i) {
  return static_cast<size_t>(i);
}

}  // namespace moe
